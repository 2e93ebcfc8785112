// complete [PROMPT]: what libellm offers, from C. Continues a prompt in both ways of streaming, cancels one, and shows
// tokens, scores, the cache, models and the daemon's state.
//
//   cc -std=c99 complete.c $(pkg-config --cflags --libs ellm) -o complete && ./complete "Once upon a time"
#include <ellm.h>
#include <stdio.h>
#include <stdlib.h>

static void check(int code, const char *what) {
  if (code == ELLM_OK) return;
  fprintf(stderr, "%s: %s (%s)\n", what, ellm_error_message(), ellm_error_name(code));
  if (code == ELLM_E_BUSY) fprintf(stderr, "try again in %u ms\n", (unsigned)ellm_error_retry_after_ms());
  if (ellm_error_request_sent()) fprintf(stderr, "the request may have run\n");
  exit(1);
}

static int print(const ellm_event *event, void *user) {
  size_t *pieces = user;
  ++*pieces;
  fwrite(event->text, 1, event->text_length, stdout);
  return 0;                       // anything else cancels
}

static void with_a_callback(ellm_client *client, const ellm_request *request) {
  ellm_reply *answer;
  ellm_completion_info info = {.struct_size = sizeof info};
  size_t pieces = 0;
  printf("callback: ");
  check(ellm_generate(client, request, print, &pieces, &answer), "generate");
  check(ellm_reply_completion(answer, &info), "completion");
  printf("\n%u + %u tokens of %s in %zu pieces, %s\n", (unsigned)info.prompt_tokens, (unsigned)info.completion_tokens,
         info.model, pieces, info.finish_reason == ELLM_FINISH_LENGTH ? "cut at the length" : "ended");
  ellm_reply_free(answer);
}

static void piece_by_piece(ellm_client *client, const ellm_request *request, int cancel_after) {
  ellm_stream *stream;
  ellm_reply *answer;
  ellm_event event = {.struct_size = sizeof event};
  ellm_completion_info info = {.struct_size = sizeof info};
  int code, pieces = 0;
  check(ellm_generate_start(client, request, &stream), "start");
  printf("pieces: ");
  while ((code = ellm_stream_next(stream, &event, -1)) == ELLM_OK) {
    fwrite(event.text, 1, event.text_length, stdout);
    if (++pieces == cancel_after) ellm_stream_cancel(stream);
  }
  if (code != ELLM_END) check(code, "next");
  check(ellm_stream_answer(stream, &answer), "answer");
  check(ellm_reply_completion(answer, &info), "completion");
  printf("\n%s\n", info.finish_reason == ELLM_FINISH_CANCELLED ? "cancelled" : "not cancelled");
  ellm_reply_free(answer);
  ellm_stream_free(stream);
}

static void tokens_and_back(ellm_client *client, const char *text) {
  ellm_reply *tokens, *back;
  const uint32_t *ids;
  size_t count, i, length;
  check(ellm_tokenize(client, NULL, text, ELLM_ZERO_TERMINATED, 0, &tokens), "tokenize");
  ids = ellm_reply_tokens(tokens, &count);
  for (i = 0; i < count; i++) printf("%u[%s] ", (unsigned)ids[i], ellm_reply_piece(tokens, i, NULL));
  check(ellm_detokenize(client, NULL, ids, count, 0, &back), "detokenize");
  printf("\nback: %s\n", ellm_reply_text(back, &length));
  ellm_reply_free(back);
  ellm_reply_free(tokens);
}

static void score(ellm_client *client, const ellm_request *request) {
  ellm_reply *scores;
  const float *log_probs;
  size_t count, i;
  double sum = 0;
  check(ellm_score(client, request, 0, &scores), "score");
  log_probs = ellm_reply_log_probs(scores, &count);
  for (i = 0; i < count; i++) sum += log_probs[i];
  printf("mean log-probability of %zu tokens: %.4f\n", count, count ? sum / (double)count : 0.0);
  ellm_reply_free(scores);
}

/* Computes the prompt before it is needed, keeps it for now, and lists what is cached. */
static void warm_and_list(ellm_client *client, const ellm_request *request) {
  ellm_reply *warmed, *list, *unpinned;
  ellm_cache_change_info change = {.struct_size = sizeof change};
  ellm_prefix_info prefix = {.struct_size = sizeof prefix};
  size_t i;
  check(ellm_cache_warm(client, request, 1, &warmed), "warm");
  check(ellm_reply_cache_change(warmed, &change), "warm");
  printf("warmed %u tokens\n", (unsigned)change.prompt_tokens);
  check(ellm_cache_list(client, NULL, NULL, &list), "list");
  for (i = 0; i < ellm_reply_prefix_count(list); i++) {
    check(ellm_reply_prefix(list, i, &prefix), "prefix");
    if (!prefix.pinned) continue;
    check(ellm_cache_unpin(client, NULL, prefix.prefix, &unpinned), "unpin");
    printf("pinned: %u tokens of %s, \"%s\"\n", (unsigned)prefix.tokens, prefix.model, prefix.head);
    ellm_reply_free(unpinned);
  }
  ellm_reply_free(list);
  ellm_reply_free(warmed);
}

static void show_daemon(ellm_client *client) {
  ellm_reply *status, *models;
  ellm_status_info info = {.struct_size = sizeof info};
  ellm_model_info model = {.struct_size = sizeof model};
  size_t i;
  check(ellm_status(client, &status), "status");
  check(ellm_reply_status(status, &info), "status");
  printf("ellmd %s, %u threads, %s\n", info.version, (unsigned)info.threads, info.kernels);
  check(ellm_models_list(client, &models), "models");
  for (i = 0; i < ellm_reply_model_count(models); i++) {
    check(ellm_reply_model(models, i, &model), "model");
    printf("model %s (%s)%s\n", model.name, model.architecture, model.loaded ? ", loaded" : "");
  }
  ellm_reply_free(models);
  ellm_reply_free(status);
}

int main(int argc, char **argv) {
  const char *prompt = argc > 1 ? argv[1] : "Once upon a time";
  ellm_connect_options options = ELLM_CONNECT_OPTIONS;
  ellm_client *client;
  ellm_request *request;
  options.software = "complete.c";
  check(ellm_connect(&options, &client), "connect");
  check(ellm_request_new(&request), "request");
  check(ellm_request_set_text(request, ELLM_PROMPT, prompt, ELLM_ZERO_TERMINATED), "prompt");
  check(ellm_request_set_number(request, ELLM_TEMPERATURE, 0), "temperature");
  check(ellm_request_set_integer(request, ELLM_MAX_TOKENS, 24), "max_tokens");
  with_a_callback(client, request);
  piece_by_piece(client, request, 0);
  check(ellm_request_set_integer(request, ELLM_MAX_TOKENS, 1900), "max_tokens");
  piece_by_piece(client, request, 3);
  tokens_and_back(client, prompt);
  score(client, request);
  warm_and_list(client, request);
  show_daemon(client);
  ellm_request_free(request);
  ellm_client_free(client);
  return 0;
}
