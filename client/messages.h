// The messages of the protocol, declared once: plain structs with a tag and a field list that drives encoding, decoding
// and visiting on both sides. Rule for change: fields are only ever appended, always with a default, never reused or
// reordered; a new message takes a new tag; kProtocolVersion rises only for an incompatible change. A reader ignores
// fields that it does not know and keeps the default of those that are missing.
//
// A frame is a little-endian u32 length and that many bytes of msgpack: [tag, field, field, …]. A connection opens with
// hello in both directions. Requests carry an id that is unique among those in flight on the connection; every reply
// and event repeats it. doc: client/PROTOCOL.md
#pragma once
#include <cstdint>
#include <string>
#include <string_view>
#include <tuple>
#include <utility>
#include <variant>
#include <vector>

namespace ellm::client {

inline constexpr uint32_t kProtocolVersion = 1;
inline constexpr uint32_t kMaxFrameBytes = 64u << 20;

#define ELLM_MESSAGE(name, tag_number, ...)    \
  static constexpr const char* kName = name;   \
  static constexpr uint32_t kTag = tag_number; \
  ELLM_FIELDS(__VA_ARGS__)
#define ELLM_FIELDS(...)                                        \
  static constexpr std::string_view kFieldNames = #__VA_ARGS__; \
  auto fields() { return std::tie(__VA_ARGS__); }               \
  auto fields() const { return std::tie(__VA_ARGS__); }

// ---- parts of messages -------------------------------------------------------------------------------------------

/// Sampling and length, as in OpenAI's API where that has the name. Defaults as in DESIGN.
struct Sampling {
  float temperature = 0.7f;
  uint32_t top_k = 0;
  float top_p = 0.95f;
  float min_p = 0;
  float repetition_penalty = 1;
  float presence_penalty = 0;
  float frequency_penalty = 0;
  uint64_t seed = 0;
  uint32_t max_tokens = 0;  // 0: as many as the context leaves
  std::vector<std::string> stop;
  std::vector<std::pair<uint32_t, float>> logit_bias;  // token, added to its logit
  uint32_t logprobs = 0;                               // alternatives per token; with want_logprobs
  bool want_logprobs = false;
  bool ignore_eos = false;
  ELLM_FIELDS(temperature, top_k, top_p, min_p, repetition_penalty, presence_penalty, frequency_penalty, seed,
              max_tokens, stop, logit_bias, logprobs, want_logprobs, ignore_eos)
};

/// One message of a chat. `extra` is a JSON object with further members (name, tool_calls, tool_call_id …), or empty.
/// `token_ids` of an assistant message: the ids that were generated; used where they detokenize to the printed text.
struct ChatMessage {
  std::string role, content;
  std::vector<uint32_t> token_ids;
  std::string extra;
  ELLM_FIELDS(role, content, token_ids, extra)
};

/// Prompt tokens that were computed, by the reason why they were not found in the cache. (Names that C++ keeps for
/// itself end in _ here, not in JSON.)
struct Recomputed {
  uint32_t new_ = 0;           // nobody had computed them
  uint32_t last_token = 0;     // its row gives the first logits
  uint32_t logits_needed = 0;  // a score wants every row's logits
  uint32_t evicted = 0;        // their page had been given up for others
  uint32_t namespace_ = 0;     // stored in a namespace that this request does not use
  uint32_t fingerprint = 0;    // stored for another file or another setting of the model
  uint32_t retokenised = 0;    // a message's token_ids did not fit the text
  uint32_t unsealed = 0;       // another request was computing them at that moment
  ELLM_FIELDS(new_, last_token, logits_needed, evicted, namespace_, fingerprint, retokenised, unsealed)
};

/// cached_tokens: prompt tokens that the forward pass skipped. With the sum of `recomputed` all that were dealt with.
struct Usage {
  uint32_t prompt_tokens = 0, cached_tokens = 0, completion_tokens = 0, drafted_tokens = 0, accepted_tokens = 0;
  Recomputed recomputed;
  uint32_t disk_tokens = 0;  // of cached_tokens: read from disk
  ELLM_FIELDS(prompt_tokens, cached_tokens, completion_tokens, drafted_tokens, accepted_tokens, recomputed, disk_tokens)
};

struct Timings {
  double queue_ms = 0, ttft_ms = 0, total_ms = 0;
  double prefill_tokens_per_second = 0, decode_tokens_per_second = 0;
  ELLM_FIELDS(queue_ms, ttft_ms, total_ms, prefill_tokens_per_second, decode_tokens_per_second)
};

struct TokenLogprob {
  uint32_t id = 0;
  float logprob = 0;
  std::vector<std::pair<uint32_t, float>> top;  // best first
  ELLM_FIELDS(id, logprob, top)
};

struct ModelInfo {
  std::string name, path, architecture, size_label, weight_types, tokenizer;
  uint64_t parameters = 0, file_bytes = 0, resident_bytes = 0;
  uint32_t context = 0;
  bool loaded = false, locked = false, chat = false;
  std::string kv_type;
  uint32_t kv_pages = 0, kv_pages_free = 0;
  uint32_t kv_pages_cached = 0;  // hold tokens and are used by no request
  ELLM_FIELDS(name, path, architecture, size_label, weight_types, tokenizer, parameters, file_bytes, resident_bytes,
              context, loaded, locked, chat, kv_type, kv_pages, kv_pages_free, kv_pages_cached)
};

/// Interactive requests go before batch requests, which keep a share of their own.
enum class Priority : uint32_t { interactive, batch };

struct RequestInfo {
  uint64_t request = 0;  // the daemon's own number
  uint32_t uid = 0, pid = 0;
  std::string model, kind, state;  // generate | chat | score | warm; queued | prefill | decode | preempted
  uint32_t prompt_tokens = 0, done_tokens = 0, completion_tokens = 0;
  double age_ms = 0;
  Priority priority = Priority::interactive;
  double deadline_left_ms = 0;  // 0: it has none
  uint32_t preemptions = 0;     // how often it had to make room
  ELLM_FIELDS(request, uid, pid, model, kind, state, prompt_tokens, done_tokens, completion_tokens, age_ms, priority,
              deadline_left_ms, preemptions)
};

enum class ErrorCode : uint32_t {
  bad_request = 1,  // the request makes no sense: a wrong type, an unknown enumerator, an impossible value
  unknown_message,  // a tag that this side does not know
  unsupported_version,
  too_large,  // a frame, a prompt that does not fit the context
  busy,       // a limit is reached; try again after retry_after_ms
  no_such_model,
  model_failed,     // the model file cannot be loaded
  template_failed,  // the chat template raised an error or is missing
  no_such_request,
  shutting_down,
  internal,
  cancelled,  // a request other than a completion was cancelled; a completion ends in done
  denied,     // it is for administrators; only said to a client that names the feature kFeatureDenied
  deadline,   // a score's time is up; a completion ends in done
};
enum class FinishReason : uint32_t { stop = 1, length, cancelled, deadline };
/// warm: computes a prompt's keys and values and generates nothing.
enum class CacheAction : uint32_t { list = 1, stat, pin, unpin, flush, warm };
enum class ModelsAction : uint32_t { list = 1, load, unload, remove };  // remove: with kFeatureManage

// Features: what hello names (see PROTOCOL.md).
inline constexpr const char* kFeatureManage = "manage";      // of the daemon: ModelsAction::remove, AddModel
inline constexpr const char* kFeatureDenied = "denied";      // of the client: it knows ErrorCode::denied
inline constexpr const char* kFeatureCache = "cache";        // of the daemon: Cache, `namespace`
inline constexpr const char* kFeatureSamples = "samples";    // of the daemon: `n`
inline constexpr const char* kFeatureDeadline = "deadline";  // of the daemon: `deadline_ms`, `priority`
inline constexpr size_t kMaxModelFiles = 128;                // of one AddModel

const char* name_of(ErrorCode code);
const char* name_of(FinishReason reason);
const char* name_of(Priority priority);

// ---- messages ------------------------------------------------------------------------------------------------------

struct Hello {
  uint32_t version = kProtocolVersion;
  std::string software;  // "ellm 0.1.0"
  std::vector<std::string> features;
  ELLM_MESSAGE("hello", 1, version, software, features)
};

/// Plain completion: no chat template. Text, or `tokens` taken as they are (nothing is added).
/// `deadline_ms`: counted from the request's arrival; it then ends with what there is. 0: none.
/// `n`: samples of the one prompt, which is computed once. Sample i is the same whatever n is; sample 0 that of n = 1.
struct Generate {
  uint32_t id = 0;
  std::string model, prompt;  // model empty: the default one
  std::vector<uint32_t> tokens;
  bool use_tokens = false;
  Sampling sampling;
  Priority priority = Priority::interactive;
  uint32_t deadline_ms = 0, n = 1;
  std::string namespace_;  // of the configuration; empty: one's own
  ELLM_MESSAGE("generate", 2, id, model, prompt, tokens, use_tokens, sampling, priority, deadline_ms, n, namespace_)
};

/// `tools` and `variables` are JSON text (an array, an object) or empty. What follows them is as in Generate.
struct Chat {
  uint32_t id = 0;
  std::string model;
  std::vector<ChatMessage> messages;
  std::string tools, variables;
  Sampling sampling;
  Priority priority = Priority::interactive;
  uint32_t deadline_ms = 0, n = 1;
  std::string namespace_;  // of the configuration; empty: one's own
  ELLM_MESSAGE("chat", 3, id, model, messages, tools, variables, sampling, priority, deadline_ms, n, namespace_)
};

struct Tokenize {
  uint32_t id = 0;
  std::string model, text;
  bool add_special = true, parse_special = true;
  ELLM_MESSAGE("tokenize", 4, id, model, text, add_special, parse_special)
};

struct Detokenize {
  uint32_t id = 0;
  std::string model;
  std::vector<uint32_t> tokens;
  bool special = false;
  ELLM_MESSAGE("detokenize", 5, id, model, tokens, special)
};

/// Renders the model's chat template over a JSON object of variables (see `ellm template`).
struct RenderTemplate {
  uint32_t id = 0;
  std::string model, variables;
  ELLM_MESSAGE("render_template", 6, id, model, variables)
};

/// Log-probabilities of a text's own tokens.
struct Score {
  uint32_t id = 0;
  std::string model, text;
  std::vector<uint32_t> tokens;
  bool use_tokens = false;
  uint32_t top = 0;  // the K best at every position
  Priority priority = Priority::interactive;
  uint32_t deadline_ms = 0;
  std::string namespace_;  // of the configuration; empty: one's own
  ELLM_MESSAGE("score", 7, id, model, text, tokens, use_tokens, top, priority, deadline_ms, namespace_)
};

struct Cancel {
  uint32_t id = 0;
  uint32_t target = 0;  // id of a request on this connection
  ELLM_MESSAGE("cancel", 8, id, target)
};

struct Status {
  uint32_t id = 0;
  ELLM_MESSAGE("status", 9, id)
};

struct Models {
  uint32_t id = 0;
  ModelsAction action = ModelsAction::list;
  std::string name;  // a name in the models directory or a path (load, unload)
  ELLM_MESSAGE("models", 10, id, action, name)
};

/// A file that the request hands over: its path as the client calls it, for messages, and its length.
struct HandedFile {
  std::string path;
  uint64_t bytes = 0;
  ELLM_FIELDS(path, bytes)
};

/// Hands a model's files (all parts of a split one, in order) over as descriptors, which travel with this frame: to be
/// loaded, or to be copied into the models directory. For administrators.
struct AddModel {
  uint32_t id = 0;
  std::string name;
  std::vector<HandedFile> files;  // one descriptor each
  bool install = false;           // false: load it
  bool replace = false;           // with install: instead of one that is there
  ELLM_MESSAGE("add_model", 11, id, name, files, install, replace)
};

/// What is kept of the prefixes that were computed. `model`: empty: all that are loaded (warm: the
/// default one; list names one).
/// `namespace_`: of the configuration; empty: the caller's own.
struct Cache {
  uint32_t id = 0;
  CacheAction action = CacheAction::list;
  std::string model, namespace_;
  std::string prefix;   // pin, unpin: CachedPrefix::prefix, or its first 8 digits or more
  uint64_t cursor = 0;  // list: CacheReply::next of the reply before
  std::string whose;    // stat, flush, for administrators: "all", or a uid
  bool pinned = false;  // flush: what is pinned, too. warm: pins it
  std::string text;     // warm: a plain text, or a chat:
  std::vector<ChatMessage> messages;
  std::string tools, variables;
  ELLM_MESSAGE("cache", 12, id, action, model, namespace_, prefix, cursor, whose, pinned, text, messages, tools,
               variables)
};

// replies and events

struct Token {
  uint32_t id = 0;
  std::string text;  // whole characters; may be empty
  std::vector<uint32_t> tokens;
  std::vector<TokenLogprob> logprobs;
  uint32_t sample = 0;
  ELLM_MESSAGE("token", 32, id, text, tokens, logprobs, sample)
};

/// The end of a sample. `usage` adds up over a request's samples: the prompt is counted with sample 0.
struct Done {
  uint32_t id = 0;
  FinishReason finish_reason = FinishReason::stop;
  std::string model;
  uint64_t seed = 0;
  Usage usage;
  Timings timings;
  uint32_t sample = 0;
  uint32_t remaining = 0;  // samples that have not ended; 0: the request has
  ELLM_MESSAGE("done", 33, id, finish_reason, model, seed, usage, timings, sample, remaining)
};

struct Error {
  uint32_t id = 0;  // 0: the connection itself
  ErrorCode code = ErrorCode::internal;
  std::string message;
  uint32_t retry_after_ms = 0;
  ELLM_MESSAGE("error", 34, id, code, message, retry_after_ms)
};

struct TokenizeReply {
  uint32_t id = 0;
  std::vector<uint32_t> tokens;
  std::vector<std::string> pieces;  // bytes of each token
  ELLM_MESSAGE("tokenize_reply", 35, id, tokens, pieces)
};

struct TextReply {  // to Detokenize and RenderTemplate
  uint32_t id = 0;
  std::string text;
  ELLM_MESSAGE("text_reply", 36, id, text)
};

/// Sent in pieces, in order; `last` closes the request.
struct ScoreReply {
  uint32_t id = 0;
  std::vector<uint32_t> tokens;                              // tokens first … first + n - 1 of the text
  std::vector<float> log_probs;                              // of tokens 1 …: one fewer in the first piece
  std::vector<std::vector<std::pair<uint32_t, float>>> top;  // one list per position
  bool last = false;
  Usage usage;
  ELLM_MESSAGE("score_reply", 37, id, tokens, log_probs, top, last, usage)
};

/// Prefixes on disk. budget_bytes is 0 where there is no disk tier; pages since the daemon's start.
struct DiskInfo {
  uint64_t bytes = 0, budget_bytes = 0;
  uint64_t pages_written = 0, pages_read = 0, pages_damaged = 0, files_skipped = 0;
  bool writing = false;  // false: the disk is full or refuses, see warnings
  ELLM_FIELDS(bytes, budget_bytes, pages_written, pages_read, pages_damaged, files_skipped, writing)
};

struct StatusReply {
  uint32_t id = 0;
  std::string version, kernels, cpu;
  uint32_t threads = 0, pid = 0;
  double uptime_s = 0;
  std::vector<ModelInfo> models;      // loaded
  std::vector<RequestInfo> requests;  // the caller's own, all for an administrator
  uint32_t running = 0, queued = 0, connections = 0;
  uint64_t served = 0, prompt_tokens = 0, completion_tokens = 0;
  std::vector<std::string> warnings;
  uint64_t cached_tokens = 0;  // of prompt_tokens
  bool admin = false;          // the caller may load, unload, add and remove models
  std::string stats_page;      // the path of client/stats_page.h's file, or empty
  DiskInfo disk;
  ELLM_MESSAGE("status_reply", 38, id, version, kernels, cpu, threads, pid, uptime_s, models, requests, running, queued,
               connections, served, prompt_tokens, completion_tokens, warnings, cached_tokens, admin, stats_page, disk)
};

struct ModelsReply {
  uint32_t id = 0;
  std::vector<ModelInfo> models;
  std::vector<std::string> warnings;  // what could not be read
  ELLM_MESSAGE("models_reply", 39, id, models, warnings)
};

struct Ok {  // to Cancel
  uint32_t id = 0;
  ELLM_MESSAGE("ok", 40, id)
};

/// A stored text that no other stored text continues.
struct CachedPrefix {
  std::string model, namespace_;  // namespace_: empty: the caller's own
  std::string prefix;             // 16 hexadecimal digits: what it is called here
  uint32_t tokens = 0;
  uint64_t bytes = 0;  // of its pages, also those that it shares with others
  bool pinned = false, in_use = false;
  double age_s = 0;        // since it was used last
  std::string head, tail;  // its first and last tokens as text
  ELLM_FIELDS(model, namespace_, prefix, tokens, bytes, pinned, in_use, age_s, head, tail)
};

/// One namespace's part of a model's cache. Pages are of kv_page_tokens tokens. Counts since it last had nothing.
struct CacheOwner {
  std::string model, owner;                              // "uid 1000", or a namespace's name
  uint32_t pages = 0, pinned_pages = 0, used_pages = 0;  // used: by requests that run
  uint32_t share_pages = 0;                              // that others cannot take; 0: it was not used for long
  uint64_t bytes = 0;
  uint64_t cached_tokens = 0, computed_tokens = 0;  // of prompts
  uint64_t evicted_pages = 0;
  ELLM_FIELDS(model, owner, pages, pinned_pages, used_pages, share_pages, bytes, cached_tokens, computed_tokens,
              evicted_pages)
};

struct CacheModel {
  std::string model;
  uint32_t page_tokens = 0;
  uint64_t page_bytes = 0;
  uint32_t pages = 0, free_pages = 0, cached_pages = 0, pinned_pages = 0, most_pinned_pages = 0;
  uint32_t damaged_pages = 0;  // found and dropped since the start
  ELLM_FIELDS(model, page_tokens, page_bytes, pages, free_pages, cached_pages, pinned_pages, most_pinned_pages,
              damaged_pages)
};

struct CacheReply {
  uint32_t id = 0;
  std::vector<CachedPrefix> prefixes;  // list; of pin and unpin the one
  uint64_t next = 0;                   // list: not 0: there may be more from this cursor on
  std::vector<CacheModel> models;      // stat
  std::vector<CacheOwner> owners;
  uint32_t pages = 0;  // flush: that were given up
  uint64_t bytes = 0;
  Usage usage;  // warm
  ELLM_MESSAGE("cache_reply", 41, id, prefixes, next, models, owners, pages, bytes, usage)
};

/// Every message there is: decoding, dispatch and the golden test go by this list.
using Message = std::variant<Hello, Generate, Chat, Tokenize, Detokenize, RenderTemplate, Score, Cancel, Status, Models,
                             AddModel, Cache, Token, Done, Error, TokenizeReply, TextReply, ScoreReply, StatusReply,
                             ModelsReply, Ok, CacheReply>;

}  // namespace ellm::client
