// libellm.so through ellm.h, against a server that the test scripts.
#include <atomic>
#include <cmath>
#include <cstddef>
#include <future>
#include <thread>
#include <vector>

#include "tests/client/c_abi_fixture.h"

namespace ellm::client {
namespace {

// What programs were compiled with: members are only added at a struct's end.
static_assert(offsetof(ellm_connect_options, wait_ms) == 24 && sizeof(ellm_connect_options) >= 32);
static_assert(offsetof(ellm_event, logprobs) == 40 && offsetof(ellm_event, sample) == 48);
static_assert(sizeof(ellm_token_logprob) == 8);
static_assert(offsetof(ellm_completion_info, cached_tokens) == 32 &&
              offsetof(ellm_completion_info, decode_tokens_per_second) == 72);
static_assert(offsetof(ellm_model_info, kv_type) == 56 && offsetof(ellm_model_info, chat) == 108);
static_assert(offsetof(ellm_status_info, warning_count) == 60 && offsetof(ellm_status_info, completion_tokens) == 80);
static_assert(ELLM_E_CANCELLED == static_cast<int>(ErrorCode::cancelled) && ELLM_E_BAD_REQUEST == 1);
static_assert(ELLM_E_DEADLINE == static_cast<int>(ErrorCode::deadline));
static_assert(ELLM_ADD_REPLACE - ELLM_ADD_LOAD == static_cast<int>(Adding::replace));
static_assert(ELLM_FINISH_DEADLINE == static_cast<int>(FinishReason::deadline));

TEST_F(CAbi, EveryOptionReachesTheDaemon) {
  std::promise<Generate> generate;
  std::promise<Chat> chat;
  serve([&](Peer& peer) {
    auto first = peer.expect<Generate>();
    peer.send(done(first.id)), generate.set_value(first);
    auto second = peer.expect<Chat>();
    peer.send(token(second.id, "hi", 9)), peer.send(done(second.id));
    second = peer.expect<Chat>();
    peer.send(done(second.id)), chat.set_value(second);
  });
  connect();
  const uint32_t tokens[] = {4, 5};
  EXPECT_EQ(ellm_request_set_text(request_, ELLM_MODEL, "tinyX", 4), ELLM_OK);
  EXPECT_EQ(ellm_request_set_text(request_, ELLM_TOOLS, "[1]", ELLM_ZERO_TERMINATED), ELLM_OK);
  EXPECT_EQ(ellm_request_set_text(request_, ELLM_VARIABLES, "{}", ELLM_ZERO_TERMINATED), ELLM_OK);
  EXPECT_EQ(ellm_request_set_tokens(request_, tokens, 2), ELLM_OK);
  const std::pair<int, double> kNumbers[] = {{ELLM_TEMPERATURE, 0.5},    {ELLM_TOP_P, 0.25},
                                             {ELLM_MIN_P, 0.125},        {ELLM_REPETITION_PENALTY, 2},
                                             {ELLM_PRESENCE_PENALTY, 3}, {ELLM_FREQUENCY_PENALTY, 4}};
  for (auto [option, value] : kNumbers) EXPECT_EQ(ellm_request_set_number(request_, option, value), ELLM_OK);
  const std::pair<int, uint64_t> kIntegers[] = {
      {ELLM_SEED, ~uint64_t{0}}, {ELLM_MAX_TOKENS, 7}, {ELLM_TOP_K, 8}, {ELLM_LOGPROBS, 9}, {ELLM_IGNORE_EOS, 1}};
  for (auto [option, value] : kIntegers) EXPECT_EQ(ellm_request_set_integer(request_, option, value), ELLM_OK);
  EXPECT_EQ(ellm_request_add_stop(request_, "a\0b", 3), ELLM_OK);
  EXPECT_EQ(ellm_request_add_logit_bias(request_, 6, -1.5f), ELLM_OK);
  ASSERT_EQ(ellm_generate(client_, request_, nullptr, nullptr, nullptr), ELLM_OK) << ellm_error_message();

  Generate seen = generate.get_future().get();
  EXPECT_EQ(seen.model, "tiny");
  EXPECT_EQ(seen.tokens, (std::vector<uint32_t>{4, 5}));
  EXPECT_TRUE(seen.use_tokens);
  const Sampling& s = seen.sampling;
  EXPECT_EQ((std::vector<float>{s.temperature, s.top_p, s.min_p, s.repetition_penalty, s.presence_penalty,
                                s.frequency_penalty}),
            (std::vector<float>{0.5f, 0.25f, 0.125f, 2, 3, 4}));
  EXPECT_EQ((std::vector<uint64_t>{s.seed, s.max_tokens, s.top_k, s.logprobs, s.want_logprobs, s.ignore_eos}),
            (std::vector<uint64_t>{~uint64_t{0}, 7, 8, 9, 1, 1}));
  EXPECT_EQ(s.stop, std::vector<std::string>{std::string("a\0b", 3)});
  EXPECT_EQ(s.logit_bias, (std::vector<std::pair<uint32_t, float>>{{6, -1.5f}}));

  EXPECT_EQ(ellm_request_add_message(request_, "user", "hello", ELLM_ZERO_TERMINATED), ELLM_OK);
  EXPECT_EQ(ellm_request_set_message_extra(request_, "{\"a\":1}", ELLM_ZERO_TERMINATED), ELLM_OK);
  ASSERT_EQ(ellm_chat(client_, request_, nullptr, nullptr, &reply_), ELLM_OK) << ellm_error_message();
  EXPECT_EQ(ellm_request_add_answer(request_, reply_), ELLM_OK);
  ASSERT_EQ(ellm_chat(client_, request_, nullptr, nullptr, nullptr), ELLM_OK) << ellm_error_message();
  Chat last = chat.get_future().get();
  EXPECT_EQ(last.tools, "[1]");
  EXPECT_EQ(last.variables, "{}");
  ASSERT_EQ(last.messages.size(), 2u);
  EXPECT_EQ(last.messages[0].extra, "{\"a\":1}");
  EXPECT_EQ(last.messages[1].role + ":" + last.messages[1].content, "assistant:hi");
  EXPECT_EQ(last.messages[1].token_ids, std::vector<uint32_t>{9});
}

TEST_F(CAbi, SamplesDeadlinesAndPriorities) {
  features_ = {kFeatureSamples, kFeatureDeadline};
  serve([](Peer& peer) {
    auto request = peer.expect<Generate>();
    EXPECT_EQ(request.n, 2u);
    EXPECT_EQ(request.deadline_ms, 1500u);
    EXPECT_EQ(request.priority, Priority::batch);
    for (uint32_t sample : {1u, 0u}) {
      Token piece = token(request.id, sample == 0 ? "zero" : "one", 5 + sample);
      piece.sample = sample;
      peer.send(piece);
      Done end = done(request.id, sample == 0 ? FinishReason::deadline : FinishReason::stop);
      end.sample = sample, end.remaining = sample;
      peer.send(end);
    }
    auto score = peer.expect<Score>();
    EXPECT_EQ(score.deadline_ms, 1500u);
    peer.send(Error{score.id, ErrorCode::deadline, "late", 0});
  });
  connect();
  EXPECT_EQ(ellm_request_set_integer(request_, ELLM_SAMPLES, 2), ELLM_OK);
  EXPECT_EQ(ellm_request_set_integer(request_, ELLM_DEADLINE_MS, 1500), ELLM_OK);
  EXPECT_EQ(ellm_request_set_integer(request_, ELLM_PRIORITY, ELLM_BATCH), ELLM_OK);
  EXPECT_EQ(ellm_request_set_integer(request_, ELLM_PRIORITY, 2), ELLM_E_ARGUMENT);
  EXPECT_EQ(ellm_request_set_integer(request_, ELLM_DEADLINE_MS, uint64_t{1} << 32), ELLM_E_ARGUMENT);
  std::string seen;
  const auto on_event = [](const ellm_event* event, void* user) {
    *static_cast<std::string*>(user) += std::to_string(event->sample) + event->text;
    return 0;
  };
  ASSERT_EQ(ellm_generate(client_, request_, on_event, &seen, &reply_), ELLM_OK) << ellm_error_message();
  EXPECT_EQ(seen, "1one0zero");
  ASSERT_EQ(ellm_reply_sample_count(reply_), 2u);
  EXPECT_EQ(ellm_reply_sample(reply_, 0), reply_);
  EXPECT_EQ(ellm_reply_sample(reply_, 2), nullptr);
  EXPECT_STREQ(ellm_reply_text(reply_, nullptr), "zero");
  const ellm_reply* other = ellm_reply_sample(reply_, 1);
  EXPECT_STREQ(ellm_reply_text(other, nullptr), "one");
  EXPECT_EQ(*ellm_reply_tokens(other, nullptr), 6u);
  ellm_completion_info info{};
  info.struct_size = sizeof info;
  ASSERT_EQ(ellm_reply_completion(reply_, &info), ELLM_OK);
  EXPECT_EQ(info.finish_reason, ELLM_FINISH_DEADLINE);
  ASSERT_EQ(ellm_reply_completion(other, &info), ELLM_OK);
  EXPECT_EQ(info.finish_reason, ELLM_FINISH_STOP);
  ellm_reply* none = nullptr;
  EXPECT_EQ(ellm_score(client_, request_, 0, &none), ELLM_E_DEADLINE);
  EXPECT_STREQ(ellm_error_name(ELLM_E_DEADLINE), "deadline");
}

TEST_F(CAbi, ACallThatAStoppingDaemonRefusesGoesToItsSuccessor) {
  std::atomic<int> connections = 0;
  serve([&](Peer& peer) {
    const bool stopping = connections++ == 0;
    auto request = peer.expect<Generate>();
    if (!stopping) return peer.send(token(request.id, "there", 1)), peer.send(done(request.id));
    peer.send(Error{request.id, ErrorCode::shutting_down, "ellmd is shutting down", 0});
    peer.receive();  // it drains: the connection stays
  });
  connect();
  ASSERT_EQ(ellm_generate(client_, request_, nullptr, nullptr, &reply_), ELLM_OK) << ellm_error_message();
  EXPECT_STREQ(ellm_reply_text(reply_, nullptr), "there");
  EXPECT_EQ(connections, 2);
}

TEST_F(CAbi, ACallThatMayHaveRunIsNotSentAgain) {
  std::atomic<int> requests = 0;
  serve([&](Peer& peer) {
    auto request = peer.expect<Generate>();
    requests++;
    peer.send(token(request.id, "half", 1));
    peer.send(Error{request.id, ErrorCode::shutting_down, "ellmd is shutting down", 0});
    peer.receive();
  });
  connect();
  EXPECT_EQ(ellm_generate(client_, request_, nullptr, nullptr, nullptr), ELLM_E_SHUTTING_DOWN);
  EXPECT_EQ(requests, 1);
}

TEST_F(CAbi, TemplatesAndModelsToAddAndRemove) {
  features_ = {kFeatureManage};
  serve([](Peer& peer) {
    auto render = peer.expect<RenderTemplate>();
    EXPECT_EQ(render.model, "m");
    peer.send(TextReply{render.id, render.variables + "!"});
    auto add = peer.expect<AddModel>();
    EXPECT_TRUE(add.install && !add.replace);
    for (int fd : peer.take_descriptors()) EXPECT_EQ(close(fd), 0);
    ModelsReply reply{add.id, std::vector<ModelInfo>(1), {}};
    reply.models[0].name = add.name;
    peer.send(reply);
    auto remove = peer.expect<Models>();
    EXPECT_EQ(remove.action, ModelsAction::remove);
    peer.send(ModelsReply{remove.id, {}, {}});
  });
  connect();
  ASSERT_EQ(ellm_render_template(client_, "m", "{}", 2, &reply_), ELLM_OK) << ellm_error_message();
  EXPECT_STREQ(ellm_reply_text(reply_, nullptr), "{}!");
  ellm_reply_free(std::exchange(reply_, nullptr));
  const std::string self = "/proc/self/exe";
  const char* paths[] = {self.c_str()};
  ASSERT_EQ(ellm_models_add(client_, "new", paths, 1, ELLM_ADD_INSTALL, &reply_), ELLM_OK) << ellm_error_message();
  ellm_model_info info{};
  info.struct_size = sizeof info;
  ASSERT_EQ(ellm_reply_model(reply_, 0, &info), ELLM_OK);
  EXPECT_STREQ(info.name, "new");
  EXPECT_EQ(ellm_models_remove(client_, "new"), ELLM_OK) << ellm_error_message();
  const char* missing[] = {"/nowhere/file"};
  ellm_reply* none = nullptr;
  EXPECT_EQ(ellm_models_add(client_, "new", missing, 1, ELLM_ADD_LOAD, &none), ELLM_E_FILE);
  EXPECT_TRUE(contains(ellm_error_message(), "/nowhere/file")) << ellm_error_message();
  EXPECT_EQ(ellm_models_add(client_, "new", paths, 1, 0, &none), ELLM_E_ARGUMENT);
  EXPECT_EQ(ellm_models_remove(client_, nullptr), ELLM_E_ARGUMENT);
}

TEST_F(CAbi, ACallbackSeesThePiecesAndMayCancel) {
  serve([](Peer& peer) {
    auto request = peer.expect<Generate>();
    Token piece = token(request.id, "one", 11);
    piece.logprobs = {{11, -0.5f, {{11, -0.5f}, {3, -2.f}}}};
    peer.send(piece);
    EXPECT_EQ(peer.expect<Status>().id, 2u);  // from within the callback
    StatusReply status;
    status.id = 2;
    peer.send(status);
    EXPECT_EQ(peer.expect<Cancel>().target, request.id);
    peer.send(token(request.id, "late", 12)), peer.send(done(request.id, FinishReason::cancelled));
  });
  connect();
  struct Seen {
    ellm_client* client;
    std::string text;
    std::thread::id thread;
    float logprob = 0;
  } seen{client_, {}, {}};
  auto on_event = [](const ellm_event* event, void* user) {
    auto& s = *static_cast<Seen*>(user);
    s.text.append(event->text, event->text_length);
    s.thread = std::this_thread::get_id();
    s.logprob = event->logprobs[0];
    ellm_reply* status = nullptr;
    EXPECT_EQ(ellm_status(s.client, &status), ELLM_OK) << ellm_error_message();
    ellm_reply_free(status);
    return 1;
  };
  ASSERT_EQ(ellm_generate(client_, request_, on_event, &seen, &reply_), ELLM_OK) << ellm_error_message();
  EXPECT_EQ(seen.text, "one");
  EXPECT_EQ(seen.thread, std::this_thread::get_id());
  EXPECT_EQ(seen.logprob, -0.5f);
  EXPECT_STREQ(ellm_reply_text(reply_, nullptr), "onelate");
  size_t count = 0;
  EXPECT_EQ(ellm_reply_tokens(reply_, &count)[1], 12u);
  EXPECT_EQ(count, 2u);
  const ellm_token_logprob* top = ellm_reply_top(reply_, 0, &count);
  ASSERT_EQ(count, 2u);
  EXPECT_EQ(top[1].id, 3u);
  EXPECT_EQ(ellm_reply_log_probs(reply_, &count)[0], -0.5f);
  ellm_completion_info info{};
  info.struct_size = sizeof info;
  ASSERT_EQ(ellm_reply_completion(reply_, &info), ELLM_OK);
  EXPECT_EQ(info.finish_reason, ELLM_FINISH_CANCELLED);
  EXPECT_EQ(info.seed, 7u);
  EXPECT_STREQ(info.model, "fake");
}

TEST_F(CAbi, AStreamIsPulledWithATimeAndCancelledFromAnotherThread) {
  std::promise<void> go;
  serve([&](Peer& peer) {
    auto request = peer.expect<Chat>();
    go.get_future().wait();
    peer.send(token(request.id, "one", 1));
    peer.expect<Cancel>();
    peer.send(done(request.id, FinishReason::cancelled));
  });
  connect();
  ASSERT_EQ(ellm_chat_start(client_, request_, &stream_), ELLM_OK) << ellm_error_message();
  ellm_event event{};
  EXPECT_EQ(ellm_stream_next(stream_, &event, 0), ELLM_E_ARGUMENT);  // no struct_size
  event.struct_size = sizeof event;
  EXPECT_EQ(ellm_stream_next(stream_, &event, 1), ELLM_TIMEOUT);
  EXPECT_EQ(ellm_stream_answer(stream_, &reply_), ELLM_E_ARGUMENT);
  EXPECT_EQ(reply_, nullptr);
  go.set_value();
  EXPECT_EQ(ellm_stream_next(stream_, &event, -1), ELLM_OK);
  EXPECT_EQ(std::string(event.text, event.text_length), "one");
  EXPECT_EQ(event.logprobs, nullptr);
  std::thread([&] { ellm_stream_cancel(stream_); }).join();
  EXPECT_EQ(ellm_stream_next(stream_, &event, -1), ELLM_END);
  EXPECT_EQ(ellm_stream_next(stream_, &event, -1), ELLM_END);
  EXPECT_EQ(ellm_stream_answer(stream_, &reply_), ELLM_OK);
  EXPECT_STREQ(ellm_reply_text(reply_, nullptr), "one");
}

TEST_F(CAbi, FreeingAStreamCancelsIt) {
  std::promise<uint32_t> cancelled;
  serve([&](Peer& peer) {
    peer.expect<Generate>();
    cancelled.set_value(peer.expect<Cancel>().target);
    peer.receive();
  });
  connect();
  ASSERT_EQ(ellm_generate_start(client_, request_, &stream_), ELLM_OK);
  ellm_stream_free(stream_);
  stream_ = nullptr;
  EXPECT_EQ(cancelled.get_future().get(), 1u);
}

TEST_F(CAbi, ErrorsAreCodesWithAMessageOfTheThread) {
  serve([](Peer& peer) {
    while (true) {
      auto request = peer.expect<Tokenize>();
      auto code = static_cast<uint32_t>(request.text.size());
      peer.send(Error{request.id, static_cast<ErrorCode>(code), "because " + std::to_string(code), code * 10});
    }
  });
  connect();
  for (int code = 1; code <= 12; code++) {
    EXPECT_EQ(ellm_tokenize(client_, nullptr, "xxxxxxxxxxxx", static_cast<size_t>(code), 0, &reply_), code);
    EXPECT_EQ(ellm_error_message(), "because " + std::to_string(code));
    EXPECT_EQ(ellm_error_retry_after_ms(), static_cast<uint32_t>(code * 10));
    EXPECT_STREQ(ellm_error_name(code), name_of(static_cast<ErrorCode>(code)));
    std::thread([] { EXPECT_STREQ(ellm_error_message(), ""); }).join();
  }
  EXPECT_EQ(reply_, nullptr);
  ellm_connect_options options = ELLM_CONNECT_OPTIONS;
  options.socket_path = "/nowhere/ellmd.sock", options.wait_ms = 0;
  ellm_client* none = nullptr;
  EXPECT_EQ(ellm_connect(&options, &none), ELLM_E_ABSENT);
  EXPECT_TRUE(contains(ellm_error_message(), "no ellmd at /nowhere/ellmd.sock")) << ellm_error_message();
  EXPECT_EQ(ellm_error_retry_after_ms(), 0u);
  EXPECT_EQ(none, nullptr);
}

TEST_F(CAbi, AnAnswerThatBreaksOffSaysThatItMayHaveRun) {
  serve([](Peer& peer) { peer.send(token(peer.expect<Generate>().id, "half", 1)); });
  connect();
  std::string text;
  auto on_event = [](const ellm_event* event, void* user) {
    static_cast<std::string*>(user)->append(event->text, event->text_length);
    return 0;
  };
  EXPECT_EQ(ellm_generate(client_, request_, on_event, &text, &reply_), ELLM_E_LOST);
  EXPECT_EQ(text, "half");
  EXPECT_EQ(ellm_error_request_sent(), 1);
  EXPECT_TRUE(contains(ellm_error_message(), "it may have run")) << ellm_error_message();
}

TEST_F(CAbi, OtherCallsAndTheirReplies) {
  serve([](Peer& peer) {
    auto tokenize = peer.expect<Tokenize>();
    EXPECT_TRUE(!tokenize.add_special && tokenize.parse_special && tokenize.model == "m");
    peer.send(TokenizeReply{tokenize.id, {1, 2}, {"a", std::string("\xFF\0", 2)}});
    auto detokenize = peer.expect<Detokenize>();
    EXPECT_TRUE(detokenize.special);
    peer.send(TextReply{detokenize.id, "ab"});
    auto score = peer.expect<Score>();
    EXPECT_EQ(score.text, "text");
    peer.send(ScoreReply{score.id, {1, 2}, {-1}, {{{1, -1.f}}, {{2, -2.f}}}, true, {}});
    for (ModelsAction action : {ModelsAction::list, ModelsAction::load, ModelsAction::unload}) {
      auto models = peer.expect<Models>();
      EXPECT_EQ(models.action, action);
      ModelsReply reply{models.id, std::vector<ModelInfo>(2), {}};
      reply.models[1].name = models.name, reply.models[1].kv_pages = 5, reply.models[1].chat = true;
      peer.send(reply);
    }
    StatusReply status;
    status.id = peer.expect<Status>().id, status.version = "9", status.served = 12, status.warnings = {"w"};
    peer.send(status);
  });
  connect();
  size_t length = 0;
  ASSERT_EQ(ellm_tokenize(client_, "m", "ab", 2, ELLM_NO_SPECIAL, &reply_), ELLM_OK) << ellm_error_message();
  EXPECT_EQ(ellm_reply_piece(reply_, 1, &length)[0], '\xFF');
  EXPECT_EQ(length, 2u);
  EXPECT_EQ(ellm_reply_piece(reply_, 2, &length), nullptr);
  EXPECT_EQ(ellm_reply_text(reply_, nullptr), nullptr);
  ellm_status_info status{};
  status.struct_size = sizeof status;
  EXPECT_EQ(ellm_reply_status(reply_, &status), ELLM_E_ARGUMENT);
  ellm_reply_free(reply_);
  const uint32_t tokens[] = {1, 2};
  ASSERT_EQ(ellm_detokenize(client_, nullptr, tokens, 2, 1, &reply_), ELLM_OK);
  EXPECT_STREQ(ellm_reply_text(reply_, &length), "ab");
  ellm_reply_free(reply_);
  ellm_request_set_text(request_, ELLM_PROMPT, "text", ELLM_ZERO_TERMINATED);
  ASSERT_EQ(ellm_score(client_, request_, 1, &reply_), ELLM_OK);
  EXPECT_EQ(ellm_reply_top(reply_, 1, &length)->id, 2u);
  EXPECT_EQ(ellm_reply_log_probs(reply_, &length)[0], -1);
  EXPECT_EQ(length, 1u);
  for (int i = 0; i < 3; i++) {
    ellm_reply_free(reply_);
    ASSERT_EQ(i == 0   ? ellm_models_list(client_, &reply_)
              : i == 1 ? ellm_models_load(client_, "in", &reply_)
                       : ellm_models_unload(client_, "out", &reply_),
              ELLM_OK);
    ellm_model_info model{};
    model.struct_size = sizeof model;
    ASSERT_EQ(ellm_reply_model_count(reply_), 2u);
    ASSERT_EQ(ellm_reply_model(reply_, 1, &model), ELLM_OK);
    EXPECT_STREQ(model.name, i == 0 ? "" : i == 1 ? "in" : "out");
    EXPECT_TRUE(model.chat && model.kv_pages == 5);
    EXPECT_EQ(ellm_reply_model(reply_, 2, &model), ELLM_E_ARGUMENT);
  }
  ellm_reply_free(reply_);
  ASSERT_EQ(ellm_status(client_, &reply_), ELLM_OK);
  ASSERT_EQ(ellm_reply_status(reply_, &status), ELLM_OK);
  EXPECT_EQ(status.served, 12u);
  EXPECT_STREQ(ellm_reply_warning(reply_, 0), "w");
  EXPECT_EQ(ellm_reply_warning(reply_, 1), nullptr);

  // A caller of another release: fewer members, and more.
  struct {
    ellm_status_info known;
    uint64_t later[2];
  } newer = {{}, {1, 1}};
  newer.known.struct_size = sizeof newer;
  ASSERT_EQ(ellm_reply_status(reply_, &newer.known), ELLM_OK);
  EXPECT_EQ(newer.known.struct_size, sizeof newer);
  EXPECT_TRUE(newer.known.served == 12 && newer.later[0] == 0 && newer.later[1] == 0);
  newer.known.struct_size = offsetof(ellm_status_info, served), newer.known.served = 99;
  ASSERT_EQ(ellm_reply_status(reply_, &newer.known), ELLM_OK);
  EXPECT_EQ(newer.known.served, 99u);
}

TEST_F(CAbi, ManyThreadsShareAClient) {
  serve(answer_everything);
  connect();
  std::vector<std::thread> threads;
  std::atomic<int> wrong = 0;
  for (int t = 0; t < 8; t++)
    threads.emplace_back([&, t] {
      ellm_request* request = nullptr;
      ellm_request_new(&request);
      for (int i = 0; i < 30; i++) {
        std::string prompt = std::to_string(t * 100 + i), five = prompt + prompt + prompt + prompt + prompt;
        ellm_reply* reply = nullptr;
        ellm_request_set_text(request, ELLM_PROMPT, prompt.data(), prompt.size());
        if (ellm_generate(client_, request, nullptr, nullptr, &reply) != ELLM_OK) wrong++;
        else if (ellm_reply_text(reply, nullptr) != five) wrong++;
        ellm_reply_free(reply);
      }
      ellm_request_free(request);
    });
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(wrong, 0);
}

TEST(CAbiArguments, NothingIsTrusted) {
  ellm_client* client = nullptr;
  ellm_reply* reply = nullptr;
  ellm_stream* stream = nullptr;
  ellm_request* request = nullptr;
  EXPECT_EQ(ellm_abi_version(), uint32_t{ELLM_ABI_VERSION});
  EXPECT_STREQ(ellm_version(), ELLM_VERSION);
  ellm_connect_options unset{};
  EXPECT_EQ(ellm_connect(&unset, &client), ELLM_E_ARGUMENT);
  EXPECT_EQ(ellm_connect(nullptr, nullptr), ELLM_E_ARGUMENT);
  EXPECT_EQ(ellm_generate(nullptr, nullptr, nullptr, nullptr, &reply), ELLM_E_ARGUMENT);
  EXPECT_EQ(ellm_chat_start(nullptr, nullptr, &stream), ELLM_E_ARGUMENT);
  EXPECT_EQ(ellm_status(nullptr, &reply), ELLM_E_ARGUMENT);
  EXPECT_EQ(ellm_stream_next(nullptr, nullptr, 0), ELLM_E_ARGUMENT);
  EXPECT_EQ(ellm_request_new(nullptr), ELLM_E_ARGUMENT);
  EXPECT_EQ(ellm_request_set_text(nullptr, ELLM_MODEL, "x", 1), ELLM_E_ARGUMENT);
  ASSERT_EQ(ellm_request_new(&request), ELLM_OK);
  EXPECT_EQ(ellm_request_set_text(request, 99, "x", 1), ELLM_E_ARGUMENT);
  EXPECT_STREQ(ellm_error_message(), "no such text option");
  EXPECT_EQ(ellm_request_set_text(request, ELLM_MODEL, nullptr, ELLM_ZERO_TERMINATED), ELLM_E_ARGUMENT);
  EXPECT_EQ(ellm_request_set_number(request, 0, 1), ELLM_E_ARGUMENT);
  EXPECT_EQ(ellm_request_set_integer(request, ELLM_TOP_K, uint64_t{1} << 32), ELLM_E_ARGUMENT);
  EXPECT_EQ(ellm_request_set_message_extra(request, "{}", 2), ELLM_E_ARGUMENT);
  EXPECT_EQ(ellm_request_add_answer(request, nullptr), ELLM_E_ARGUMENT);
  size_t count = 7;
  EXPECT_EQ(ellm_reply_tokens(nullptr, &count), nullptr);
  EXPECT_EQ(count, 0u);
  EXPECT_EQ(ellm_reply_model_count(nullptr), 0u);
  ellm_stream_cancel(nullptr);
  ellm_stream_free(nullptr);
  ellm_reply_free(nullptr);
  ellm_client_free(nullptr);
  ellm_request_free(request);
  EXPECT_STREQ(ellm_error_name(ELLM_E_LOST), "lost");
  EXPECT_STREQ(ellm_error_name(150), "unknown");
}

}  // namespace
}  // namespace ellm::client
