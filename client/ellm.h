// ellm.h: calls ellmd from C, and from every language that can call C. Link with -lellm (pkg-config ellm).
//
//   ellm_client *client;
//   if (ellm_connect(NULL, &client) != ELLM_OK) { fprintf(stderr, "%s\n", ellm_error_message()); return 1; }
//
// Functions that can fail return an ELLM_… code; what went wrong is then in ellm_error_message() of the same thread, and
// the outputs are untouched. Handles are freed by the caller, in any order; freeing NULL is allowed. What a function
// returns by pointer belongs to the handle that it was asked of. Texts are UTF-8 with a length, and a zero behind them.
//
// Threads: a client may be used by any number of threads at once, and many requests can be in flight on it. Any other
// handle belongs to one thread at a time; ellm_stream_cancel() alone may be called by any. After fork() the child
// neither uses nor frees its parent's handles.
//
// Versions: functions and enumerators are only ever added; a struct only grows at its end. Its first member is its size
// in bytes, set by the caller: the library writes no more than that, and zeros where it knows less.
#ifndef ELLM_H
#define ELLM_H

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

#define ELLM_ABI_VERSION 1
#define ELLM_API __attribute__((visibility("default")))

// The library's own ELLM_ABI_VERSION, and its release ("0.1.0").
ELLM_API uint32_t ellm_abi_version(void);
ELLM_API const char* ellm_version(void);

// ---- errors --------------------------------------------------------------------------------------------------------

enum {
  ELLM_OK = 0,
  // The daemon's answers; client/PROTOCOL.md says what to do about each.
  ELLM_E_BAD_REQUEST = 1,
  ELLM_E_UNKNOWN_MESSAGE = 2,
  ELLM_E_UNSUPPORTED_VERSION = 3,
  ELLM_E_TOO_LARGE = 4,
  ELLM_E_BUSY = 5,  // again after ellm_error_retry_after_ms()
  ELLM_E_NO_SUCH_MODEL = 6,
  ELLM_E_MODEL_FAILED = 7,
  ELLM_E_TEMPLATE_FAILED = 8,
  ELLM_E_NO_SUCH_REQUEST = 9,
  ELLM_E_SHUTTING_DOWN = 10,
  ELLM_E_INTERNAL = 11,
  ELLM_E_CANCELLED = 12,
  ELLM_E_NOT_ADMIN = 13,  // it is for administrators
  ELLM_E_DEADLINE = 14,   // of a score; a completion ends with ELLM_FINISH_DEADLINE
  // The connection's.
  ELLM_E_ABSENT = 100,  // no daemon came within the wait
  ELLM_E_DENIED = 101,
  ELLM_E_LOST = 102,      // it ended; ellm_error_request_sent() says whether the request may have run
  ELLM_E_PROTOCOL = 103,  // what listens there is not ellmd, or of another release
  ELLM_E_BAD_PATH = 104,
  // The library's.
  ELLM_E_ARGUMENT = 200,  // a null handle, an unknown option, an index past the end
  ELLM_E_MEMORY = 201,
  ELLM_E_FILE = 202,  // a file that is to be handed over cannot be opened
  // No failures; no message is set.
  ELLM_END = -1,     // the stream has ended
  ELLM_TIMEOUT = -2  // nothing came in time
};

// Of this thread's last call that failed. The text is valid until the next one.
ELLM_API const char* ellm_error_message(void);
ELLM_API uint32_t ellm_error_retry_after_ms(void);
ELLM_API int ellm_error_request_sent(void);
// "no_such_model", …; "unknown" for a code that this release does not know.
ELLM_API const char* ellm_error_name(int code);

// ---- connecting ----------------------------------------------------------------------------------------------------

typedef struct ellm_client ellm_client;

typedef struct {
  size_t struct_size;
  const char* socket_path;  // NULL: $ELLM_SOCKET, $XDG_RUNTIME_DIR/ellm/ellmd.sock, /run/ellm/ellmd.sock
  const char* software;     // your program's name and version, or NULL
  int64_t wait_ms;          // for a daemon that starts or restarts; negative: 3000
} ellm_connect_options;
#define ELLM_CONNECT_OPTIONS {sizeof(ellm_connect_options), NULL, NULL, -1}

// `options` may be NULL.
ELLM_API int ellm_connect(const ellm_connect_options* options, ellm_client** client);
// Closes the connection: the daemon cancels what is in flight.
ELLM_API void ellm_client_free(ellm_client* client);

// ---- requests ------------------------------------------------------------------------------------------------------

typedef struct ellm_request ellm_request;
typedef struct ellm_reply ellm_reply;

#define ELLM_ZERO_TERMINATED ((size_t)-1)  // as a text's length

enum {             // ellm_request_set_text
  ELLM_MODEL = 1,  // default: the daemon's default model
  ELLM_PROMPT = 2,
  ELLM_TOOLS = 3,      // a JSON array
  ELLM_VARIABLES = 4,  // a JSON object: further variables of the chat template
  ELLM_NAMESPACE = 5   // whose prefixes are found and kept, as the daemon's configuration names it; default: your own
};
enum {                   // ellm_request_set_number
  ELLM_TEMPERATURE = 1,  // 0.7; 0: greedy
  ELLM_TOP_P = 2,        // 0.95
  ELLM_MIN_P = 3,
  ELLM_REPETITION_PENALTY = 4,
  ELLM_PRESENCE_PENALTY = 5,
  ELLM_FREQUENCY_PENALTY = 6
};
enum {  // ellm_request_set_integer
  ELLM_SEED = 1,
  ELLM_MAX_TOKENS = 2,  // 0: as many as the context leaves
  ELLM_TOP_K = 3,
  ELLM_LOGPROBS = 4,  // log-probabilities of the tokens, and of that many alternatives of each
  ELLM_IGNORE_EOS = 5,
  ELLM_SAMPLES = 6,      // answers to the one prompt, which is computed once; 1
  ELLM_DEADLINE_MS = 7,  // from the request's arrival: it ends with what there is then; 0: none
  ELLM_PRIORITY = 8      // ELLM_INTERACTIVE, ELLM_BATCH
};
enum { ELLM_INTERACTIVE = 0, ELLM_BATCH = 1 };

// A request may be sent any number of times, and changed in between.
ELLM_API int ellm_request_new(ellm_request** request);
ELLM_API void ellm_request_free(ellm_request* request);
ELLM_API int ellm_request_set_text(ellm_request* request, int option, const char* text, size_t length);
ELLM_API int ellm_request_set_number(ellm_request* request, int option, double value);
ELLM_API int ellm_request_set_integer(ellm_request* request, int option, uint64_t value);
// Ids in place of a prompt's text, taken as they are.
ELLM_API int ellm_request_set_tokens(ellm_request* request, const uint32_t* tokens, size_t count);
ELLM_API int ellm_request_add_stop(ellm_request* request, const char* text, size_t length);
ELLM_API int ellm_request_add_logit_bias(ellm_request* request, uint32_t token, float value);
// role: "system", "user", "assistant", "tool".
ELLM_API int ellm_request_add_message(ellm_request* request, const char* role, const char* content, size_t length);
// Further members of the message added last, as a JSON object (name, tool_calls, tool_call_id).
ELLM_API int ellm_request_set_message_extra(ellm_request* request, const char* json, size_t length);
// The answer as an assistant's message, with the ids that were generated: the next turn finds its prefix computed.
ELLM_API int ellm_request_add_answer(ellm_request* request, const ellm_reply* answer);

// ---- completions ---------------------------------------------------------------------------------------------------

typedef struct {
  size_t struct_size;
  const char* text;  // whole characters; may be empty
  size_t text_length;
  const uint32_t* tokens;
  size_t token_count;
  const float* logprobs;  // one per token with ELLM_LOGPROBS, else NULL
  uint32_t sample;        // with ELLM_SAMPLES: whose piece it is
} ellm_event;

// Called in the caller's thread. Not 0: the request is cancelled, and the answer is what there is.
typedef int (*ellm_on_event)(const ellm_event* event, void* user);

// Continues the prompt or the tokens; answers the messages. `on_event` may be NULL; `answer` may be NULL. Sent again
// where the daemon cannot have begun it.
ELLM_API int ellm_generate(ellm_client* client, const ellm_request* request, ellm_on_event on_event, void* user,
                           ellm_reply** answer);
ELLM_API int ellm_chat(ellm_client* client, const ellm_request* request, ellm_on_event on_event, void* user,
                       ellm_reply** answer);

// The same, asked for piece by piece; never sent again by itself.
typedef struct ellm_stream ellm_stream;
ELLM_API int ellm_generate_start(ellm_client* client, const ellm_request* request, ellm_stream** stream);
ELLM_API int ellm_chat_start(ellm_client* client, const ellm_request* request, ellm_stream** stream);
// The next piece, valid until the next call on this stream. ELLM_END after the last, ELLM_TIMEOUT after timeout_ms
// (negative: wait without end), or why the request failed. event->struct_size is the caller's.
ELLM_API int ellm_stream_next(ellm_stream* stream, ellm_event* event, int timeout_ms);
// Asks the daemon to stop; the stream then ends soon. No effect after the end.
ELLM_API void ellm_stream_cancel(ellm_stream* stream);
// The whole answer, after ELLM_END.
ELLM_API int ellm_stream_answer(ellm_stream* stream, ellm_reply** answer);
// Cancels what has not ended.
ELLM_API void ellm_stream_free(ellm_stream* stream);

// ---- other calls ---------------------------------------------------------------------------------------------------

enum { ELLM_NO_SPECIAL = 1, ELLM_PLAIN_TEXT = 2 };  // flags of ellm_tokenize: add no BOS; special tokens are text

// `model` NULL: the default one. The reply has tokens, and a piece for each.
ELLM_API int ellm_tokenize(ellm_client* client, const char* model, const char* text, size_t length, uint32_t flags,
                           ellm_reply** reply);
// The reply has the text. `special`: print special tokens too.
ELLM_API int ellm_detokenize(ellm_client* client, const char* model, const uint32_t* tokens, size_t count, int special,
                             ellm_reply** reply);
// Prints the model's chat template over a JSON object of variables, such as {"messages": [...]}. The reply has the
// text.
ELLM_API int ellm_render_template(ellm_client* client, const char* model, const char* variables, size_t length,
                                  ellm_reply** reply);
// Log-probabilities of the request's prompt or tokens: the reply has tokens, log_probs of all but the first, and with
// `top` the best at each position.
ELLM_API int ellm_score(ellm_client* client, const ellm_request* request, uint32_t top, ellm_reply** reply);
// The reply has models. Loading and unloading take an administrator where the daemon is the system's.
ELLM_API int ellm_models_list(ellm_client* client, ellm_reply** reply);
ELLM_API int ellm_models_load(ellm_client* client, const char* name, ellm_reply** reply);
ELLM_API int ellm_models_unload(ellm_client* client, const char* name, ellm_reply** reply);
enum { ELLM_ADD_LOAD = 1, ELLM_ADD_INSTALL = 2, ELLM_ADD_REPLACE = 3 };  // replace: install over one that is there
// Hands a model's files (all parts of a split one, in order) to the daemon, which need not be able to open them: to be
// loaded under `name`, or to be copied into its models directory. The reply has the model.
ELLM_API int ellm_models_add(ellm_client* client, const char* name, const char* const* paths, size_t count, int adding,
                             ellm_reply** reply);
// From the models directory; one that is not loaded.
ELLM_API int ellm_models_remove(ellm_client* client, const char* name);
// The reply has a status, and the loaded models.
ELLM_API int ellm_status(ellm_client* client, ellm_reply** reply);

// ---- the cache -----------------------------------------------------------------------------------------------------

// The prefixes that the daemon has computed and keeps. `model` NULL: all that are loaded. `name_space`: one of the
// daemon's configuration, whose prefixes others use too; NULL: your own. `whose`: "all" or a uid, for administrators;
// NULL: yours.

// The reply has prefixes, those used last first.
ELLM_API int ellm_cache_list(ellm_client* client, const char* model, const char* name_space, ellm_reply** reply);
// The reply has cache models and cache owners.
ELLM_API int ellm_cache_stat(ellm_client* client, const char* model, const char* whose, ellm_reply** reply);
// Keeps a prefix (ellm_prefix_info.prefix, or its first 8 digits or more) from being given up for others; or no longer.
// The reply has the prefix.
ELLM_API int ellm_cache_pin(ellm_client* client, const char* name_space, const char* prefix, ellm_reply** reply);
ELLM_API int ellm_cache_unpin(ellm_client* client, const char* name_space, const char* prefix, ellm_reply** reply);
// Gives all up; what is pinned only where `pinned` is not 0. The reply has a cache change.
ELLM_API int ellm_cache_flush(ellm_client* client, const char* model, const char* name_space, const char* whose,
                              int pinned, ellm_reply** reply);
// Computes what begins requests to come, before they need it: the request's messages through the chat template (unless
// ELLM_VARIABLES says otherwise without what asks for an answer), or its prompt's text. Its ELLM_MODEL and
// ELLM_NAMESPACE count, nothing else. `pin` not 0: and pins it. The reply has a cache change.
ELLM_API int ellm_cache_warm(ellm_client* client, const ellm_request* request, int pin, ellm_reply** reply);

// ---- replies -------------------------------------------------------------------------------------------------------

enum { ELLM_FINISH_STOP = 1, ELLM_FINISH_LENGTH = 2, ELLM_FINISH_CANCELLED = 3, ELLM_FINISH_DEADLINE = 4 };

typedef struct {
  uint32_t id;
  float logprob;  // natural logarithm
} ellm_token_logprob;

typedef struct {
  size_t struct_size;
  const char* model;
  uint64_t seed;
  int32_t finish_reason;
  uint32_t prompt_tokens, cached_tokens, completion_tokens;
  double queue_ms, ttft_ms, total_ms;
  double prefill_tokens_per_second, decode_tokens_per_second;
} ellm_completion_info;

typedef struct {
  size_t struct_size;
  const char *name, *path, *architecture, *size_label, *weight_types, *tokenizer, *kv_type;
  uint64_t parameters, file_bytes, resident_bytes;
  uint32_t context, kv_pages, kv_pages_free;
  int32_t loaded, locked, chat;  // chat: it has a chat template
} ellm_model_info;

typedef struct {
  size_t struct_size;
  const char *version, *kernels, *cpu;
  double uptime_s;
  uint32_t threads, pid, running, queued, connections, warning_count;
  uint64_t served, prompt_tokens, completion_tokens;
} ellm_status_info;

// A stored text that no other stored text continues.
typedef struct {
  size_t struct_size;
  const char *model, *name_space;  // name_space: empty: your own
  const char* prefix;              // 16 hexadecimal digits: what it is called here
  const char *head, *tail;         // its first and last tokens as text
  uint64_t bytes;                  // of its pages, also those that it shares with others
  double age_s;                    // since it was used last
  uint32_t tokens;
  int32_t pinned, in_use;
} ellm_prefix_info;

typedef struct {
  size_t struct_size;
  const char* model;
  uint64_t page_bytes;
  uint32_t page_tokens, pages, free_pages, cached_pages, pinned_pages, most_pinned_pages;
  uint32_t damaged_pages;  // found and dropped since the daemon's start
} ellm_cache_model_info;

// One namespace's part of a model's cache. Counts since it last had nothing.
typedef struct {
  size_t struct_size;
  const char *model, *owner;  // "uid 1000", or a namespace's name
  uint64_t bytes;
  uint64_t cached_tokens, computed_tokens;  // of prompts
  uint64_t evicted_pages;
  uint32_t pages, pinned_pages, used_pages;  // used: by requests that run
  uint32_t share_pages;                      // that others cannot take; 0: it was not used for long
} ellm_cache_owner_info;

typedef struct {
  size_t struct_size;
  uint64_t flushed_pages, flushed_bytes;  // of flush
  uint32_t prompt_tokens, cached_tokens;  // of warm: the text's; those that were there already
} ellm_cache_change_info;

// Nothing of a kind that the reply has not: NULL, a count of 0, or ELLM_E_ARGUMENT. Counts and lengths may be NULL.
ELLM_API const char* ellm_reply_text(const ellm_reply* reply, size_t* length);
ELLM_API const uint32_t* ellm_reply_tokens(const ellm_reply* reply, size_t* count);
ELLM_API const char* ellm_reply_piece(const ellm_reply* reply, size_t index, size_t* length);
ELLM_API const float* ellm_reply_log_probs(const ellm_reply* reply, size_t* count);
ELLM_API const ellm_token_logprob* ellm_reply_top(const ellm_reply* reply, size_t position, size_t* count);
// A completion's samples: 0 is the reply itself, the others belong to it. The prompt is counted with sample 0 alone.
ELLM_API size_t ellm_reply_sample_count(const ellm_reply* reply);
ELLM_API const ellm_reply* ellm_reply_sample(const ellm_reply* reply, size_t index);
ELLM_API const char* ellm_reply_warning(const ellm_reply* reply, size_t index);
ELLM_API size_t ellm_reply_model_count(const ellm_reply* reply);
ELLM_API int ellm_reply_model(const ellm_reply* reply, size_t index, ellm_model_info* info);
ELLM_API int ellm_reply_completion(const ellm_reply* reply, ellm_completion_info* info);
ELLM_API int ellm_reply_status(const ellm_reply* reply, ellm_status_info* info);
ELLM_API size_t ellm_reply_prefix_count(const ellm_reply* reply);
ELLM_API int ellm_reply_prefix(const ellm_reply* reply, size_t index, ellm_prefix_info* info);
ELLM_API size_t ellm_reply_cache_model_count(const ellm_reply* reply);
ELLM_API int ellm_reply_cache_model(const ellm_reply* reply, size_t index, ellm_cache_model_info* info);
ELLM_API size_t ellm_reply_cache_owner_count(const ellm_reply* reply);
ELLM_API int ellm_reply_cache_owner(const ellm_reply* reply, size_t index, ellm_cache_owner_info* info);
ELLM_API int ellm_reply_cache_change(const ellm_reply* reply, ellm_cache_change_info* info);
ELLM_API void ellm_reply_free(ellm_reply* reply);

#ifdef __cplusplus
}
#endif
#endif
