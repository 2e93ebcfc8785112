// What each call of the client library sends and makes of the replies, one after the other and at once.
#include <gtest/gtest.h>

#include <cmath>
#include <csignal>
#include <functional>
#include <future>
#include <system_error>

#include "tests/client/client_fixture.h"

namespace ellm::client {
namespace {

using namespace std::chrono_literals;

TEST_F(ClientTest, AnAnswerStreamsInOrderAndIsWholeAtTheEnd) {
  Generate seen;
  serve([&](Peer& peer) {
    seen = peer.expect<Generate>();
    for (uint32_t i = 0; i < 3; i++) {
      Token event = token(seen.id, std::string(1, static_cast<char>('a' + i)), 10 + i);
      event.logprobs = {{10 + i, -0.5f, {{1, -1.0f}}}};
      peer.send(event);
    }
    Done last = done(seen.id, FinishReason::length);
    last.timings.ttft_ms = 12;
    peer.send(last);
  });
  Client client(path_);
  EXPECT_EQ(client.server().software, "fake 1");
  EXPECT_EQ(client.server().features, std::vector<std::string>{"fake"});
  Generate request;
  request.prompt = "hello";
  request.sampling.stop = {"x"};
  std::string streamed;
  Completion completion = client.generate(request, [&](const Token& event) { streamed += event.text + "|"; });
  EXPECT_EQ(seen.prompt, "hello");
  EXPECT_EQ(seen.sampling.stop, std::vector<std::string>{"x"});
  EXPECT_EQ(streamed, "a|b|c|");
  EXPECT_EQ(completion.text, "abc");
  EXPECT_EQ(completion.tokens, (std::vector<uint32_t>{10, 11, 12}));
  EXPECT_EQ(completion.logprobs.size(), 3u);
  EXPECT_EQ(completion.finish_reason, FinishReason::length);
  EXPECT_EQ(completion.model, "fake");
  EXPECT_EQ(completion.seed, 7u);
  EXPECT_EQ(completion.usage.completion_tokens, 2u);
  EXPECT_EQ(completion.timings.ttft_ms, 12);
}

TEST_F(ClientTest, EveryBlockingCallSendsItsRequestAndTakesItsReply) {
  serve([](Peer& peer) {
    auto chat = peer.expect<Chat>();
    EXPECT_EQ(chat.messages.at(0).token_ids, (std::vector<uint32_t>{4, 5}));
    peer.send(token(chat.id, "hi", 1)), peer.send(done(chat.id));
    auto tokenize = peer.expect<Tokenize>();
    EXPECT_FALSE(tokenize.add_special);
    peer.send(TokenizeReply{tokenize.id, {1, 2}, {"a", "b"}});
    auto detokenize = peer.expect<Detokenize>();
    EXPECT_EQ(detokenize.tokens, (std::vector<uint32_t>{1, 2}));
    peer.send(TextReply{detokenize.id, "ab"});
    auto render = peer.expect<RenderTemplate>();
    peer.send(TextReply{render.id, render.variables + "!"});
    auto score = peer.expect<Score>();
    EXPECT_EQ(score.top, 2u);
    peer.send(ScoreReply{score.id, {1, 2}, {-1}, {{{1, -1.f}}, {{2, -2.f}}}, false, {}});
    peer.send(ScoreReply{score.id, {3}, {-3}, {{{3, -3.f}}}, true, {3, 0, 0, 0, 0, {}}});
    StatusReply status;
    status.id = peer.expect<Status>().id, status.version = "9";
    peer.send(status);
    auto models = peer.expect<Models>();
    EXPECT_EQ(models.action, ModelsAction::load);
    ModelsReply reply{models.id, std::vector<ModelInfo>(1), {}};
    reply.models[0].name = models.name;
    peer.send(reply);
    auto cancel = peer.expect<Cancel>();
    EXPECT_EQ(cancel.target, 77u);
    peer.send(Ok{cancel.id});
  });
  Client client(path_);
  Chat chat;
  chat.messages = {{"assistant", "earlier", {4, 5}, ""}};
  EXPECT_EQ(client.chat(chat).text, "hi");
  EXPECT_EQ(client.tokenize({0, "", "ab", false, true}).pieces, (std::vector<std::string>{"a", "b"}));
  EXPECT_EQ(client.detokenize({0, "", {1, 2}, false}), "ab");
  EXPECT_EQ(client.render_template({0, "", "{}"}), "{}!");
  Score score;
  score.text = "abc";
  score.top = 2;
  Scores scores = client.score(score);
  EXPECT_EQ(scores.tokens, (std::vector<uint32_t>{1, 2, 3}));
  EXPECT_EQ(scores.log_probs, (std::vector<float>{-1, -3}));
  EXPECT_EQ(scores.top.size(), 3u);
  EXPECT_EQ(scores.usage.prompt_tokens, 3u);
  EXPECT_DOUBLE_EQ(scores.perplexity(), std::exp(2.0));
  EXPECT_TRUE(std::isnan(Scores().perplexity()));
  EXPECT_EQ(client.status().version, "9");
  EXPECT_EQ(client.models(ModelsAction::load, "m").at(0).name, "m");
  client.cancel(77);
  EXPECT_EQ(server_->trouble(), "");
}

TEST_F(ClientTest, SamplesAreToldApart) {
  features_ = {kFeatureSamples, kFeatureDeadline};
  serve([](Peer& peer) {
    auto request = peer.expect<Chat>();
    EXPECT_EQ(request.n, 3u);
    EXPECT_EQ(request.deadline_ms, 10000u);
    EXPECT_EQ(request.priority, Priority::batch);
    for (uint32_t sample : {2u, 0u, 1u, 0u}) {
      Token piece = token(request.id, std::string(1, static_cast<char>('a' + sample)), sample);
      piece.sample = sample;
      peer.send(piece);
    }
    for (uint32_t sample : {1u, 2u, 0u}) {
      Done end = done(request.id, sample == 2 ? FinishReason::deadline : FinishReason::stop);
      end.sample = sample;
      end.remaining = sample == 0 ? 0 : 3 - sample;
      end.usage.prompt_tokens = sample == 0 ? 7 : 0;
      peer.send(end);
    }
  });
  Client client(path_);
  Chat request;
  request.n = 3, request.deadline_ms = 10000, request.priority = Priority::batch;
  std::string streamed;
  const Completion first = client.chat(request, [&](const Token& t) { streamed += std::to_string(t.sample) + t.text; });
  EXPECT_EQ(streamed, "2c0a1b0a");
  EXPECT_EQ(first.text, "aa");
  EXPECT_EQ(first.sample, 0u);
  EXPECT_EQ(first.usage.prompt_tokens, 7u);
  ASSERT_EQ(first.others.size(), 2u);
  EXPECT_EQ(first.others[0].text, "b");
  EXPECT_EQ(first.others[1].text, "c");
  EXPECT_EQ(first.others[1].sample, 2u);
  EXPECT_EQ(first.others[1].finish_reason, FinishReason::deadline);
  EXPECT_EQ(first.others[0].usage.prompt_tokens, 0u);
}

TEST_F(ClientTest, ASampleThatWasNotAskedForIsAnError) {
  features_ = {kFeatureSamples};
  serve([](Peer& peer) {
    auto request = peer.expect<Generate>();
    Token piece = token(request.id, "x", 1);
    piece.sample = 2;
    peer.send(piece);
    peer.receive();
  });
  Client client(path_);
  Generate request;
  request.n = 2;
  EXPECT_EQ(connection_error([&] { client.generate(request); }).kind(), Kind::protocol);
}

TEST_F(ClientTest, AnOlderDaemonIsNotAskedForWhatItWouldNotHeed) {
  serve(answer_everything);
  Client client(path_);
  Generate several, soon;
  several.n = 2, soon.deadline_ms = 1;
  Score score;
  score.deadline_ms = 1;
  const std::vector<std::function<void()>> calls = {
      [&] { client.generate(several); }, [&] { client.generate(soon); },
      [&] { client.score(score); },      [&] { client.start(several); },
      [&] { client.remove_model("m"); }, [&] { client.add_model("m", {"/dev/null"}); }};
  for (const auto& call : calls) {
    const ClientError error = client_error(call);
    EXPECT_EQ(error.code(), ErrorCode::unknown_message);
    EXPECT_TRUE(contains(error.what(), "fake 1 is too old to")) << error.what();
  }
  Generate batch;  // it would go first there: no harm
  batch.priority = Priority::batch;
  EXPECT_EQ(client.generate(batch).tokens.size(), 5u);
}

TEST_F(ClientTest, AddModelHandsItsFilesOver) {
  features_ = {kFeatureManage};
  const std::vector<std::string> paths = {directory_ + "/one", directory_ + "/two"};
  for (const std::string& path : paths) {
    FILE* file = fopen(path.c_str(), "w");
    ASSERT_TRUE(file);
    fputs(path.ends_with("one") ? "first" : "the second", file);
    fclose(file);
  }
  std::vector<std::string> contents;
  std::vector<AddModel> seen;
  serve([&](Peer& peer) {
    while (auto message = peer.receive()) {
      if (auto* removal = std::get_if<Models>(&*message)) {
        EXPECT_EQ(removal->action, ModelsAction::remove);
        peer.send(Error{removal->id, ErrorCode::no_such_model, "no " + removal->name, 0});
        continue;
      }
      seen.push_back(std::get<AddModel>(*message));
      for (int fd : peer.take_descriptors()) {
        char text[32] = {};
        EXPECT_GT(pread(fd, text, sizeof text - 1, 0), 0);
        contents.emplace_back(text);
        close(fd);
      }
      ModelsReply reply{seen.back().id, std::vector<ModelInfo>(seen.back().name == "none" ? 0 : 1), {}};
      if (!reply.models.empty()) reply.models[0].name = seen.back().name;
      peer.send(reply);
    }
  });
  Client client(path_);
  EXPECT_EQ(client.add_model("m", paths).name, "m");
  client.add_model("m", {paths[1]}, Adding::install);
  client.add_model("m", {paths[0]}, Adding::replace);
  EXPECT_EQ(contents, (std::vector<std::string>{"first", "the second", "the second", "first"}));
  ASSERT_EQ(seen.size(), 3u);
  ASSERT_EQ(seen[0].files.size(), 2u);
  EXPECT_EQ(seen[0].files[1].path, paths[1]);
  EXPECT_EQ(seen[0].files[1].bytes, 10u);
  EXPECT_EQ((std::vector<bool>{seen[0].install, seen[0].replace, seen[1].install, seen[1].replace, seen[2].install,
                               seen[2].replace}),
            (std::vector<bool>{false, false, true, false, true, true}));
  EXPECT_THROW(client.add_model("m", {directory_ + "/three"}), std::system_error);
  EXPECT_EQ(connection_error([&] { client.add_model("none", {paths[0]}); }).kind(), Kind::protocol);
  EXPECT_EQ(client_error([&] { client.remove_model("m"); }).code(), ErrorCode::no_such_model);
  server_.reset();
}

TEST_F(ClientTest, EveryErrorCodeComesOutAsItIs) {
  serve([](Peer& peer) {
    while (true) {
      auto request = peer.expect<Tokenize>();
      auto code = static_cast<uint32_t>(request.text.size());
      peer.send(Error{request.id, static_cast<ErrorCode>(code), "because " + std::to_string(code), code * 10});
    }
  });
  Client client(path_);
  for (uint32_t code = 1; code <= 14; code++) {
    ClientError error = client_error([&] { client.tokenize({0, "", std::string(code, 'x'), true, true}); });
    EXPECT_EQ(static_cast<uint32_t>(error.code()), code);
    EXPECT_EQ(error.what(), "because " + std::to_string(code));
    EXPECT_EQ(error.retry_after_ms(), code * 10);
  }
}

TEST_F(ClientTest, TwoBackgroundRequestsInterleave) {
  serve([](Peer& peer) {
    auto first = peer.expect<Generate>(), second = peer.expect<Generate>();
    ASSERT_NE(first.id, second.id);
    for (uint32_t i = 0; i < 3; i++)
      peer.send(token(first.id, first.prompt, i)), peer.send(token(second.id, second.prompt, i));
    peer.send(done(second.id)), peer.send(done(first.id));
  });
  Client client(path_);
  Generate a, b;
  a.prompt = "a", b.prompt = "b";
  std::string order;
  std::promise<std::string> ended;
  Running first = client.start(a, [&](const Token& event) { order += event.text; });
  Running second = client.start(
      b, [&](const Token& event) { order += event.text; },
      [&](Completion completion, std::exception_ptr error) { ended.set_value(error ? "error" : completion.text); });
  EXPECT_EQ(ended.get_future().get(), "bbb");
  EXPECT_EQ(first.get().text, "aaa");
  EXPECT_EQ(second.get().text, "bbb");
  EXPECT_EQ(order, "ababab");
  EXPECT_TRUE(first.ready());
}

TEST_F(ClientTest, ABlockingCallGoesOnBesideABackgroundRequest) {
  serve([](Peer& peer) {
    auto generate = peer.expect<Generate>();
    auto tokenize = peer.expect<Tokenize>();
    peer.send(token(generate.id, "x", 1));
    peer.send(TokenizeReply{tokenize.id, {1}, {"x"}});
    tokenize = peer.expect<Tokenize>();
    peer.send(TokenizeReply{tokenize.id, {2}, {"y"}});
    peer.send(done(generate.id));
  });
  Client client(path_);
  Running running = client.start(Generate());
  EXPECT_FALSE(running.wait_for(5ms));
  EXPECT_EQ(client.tokenize({0, "", "x", true, true}).tokens.at(0), 1u);
  EXPECT_FALSE(running.ready());
  EXPECT_EQ(client.tokenize({0, "", "y", true, true}).tokens.at(0), 2u);
  EXPECT_TRUE(running.wait_for(20s));
  EXPECT_EQ(running.get().text, "x");
}

TEST_F(ClientTest, ManyThreadsShareOneConnection) {
  serve(answer_everything);
  Client client(path_);
  std::vector<std::thread> threads;
  std::atomic<int> wrong = 0, ended = 0;
  for (int t = 0; t < 8; t++)
    threads.emplace_back([&, t] {
      for (int i = 0; i < 50; i++) {
        std::string text(static_cast<size_t>(t * 50 + i), 'x');
        if (client.tokenize({0, "", text, true, true}).tokens.at(0) != text.size()) wrong++;
        Generate request;
        request.prompt = "p" + std::to_string(t * 50 + i);
        std::string five = request.prompt + request.prompt + request.prompt + request.prompt + request.prompt;
        if (i % 2) {
          if (client.generate(request).text != five) wrong++;
        } else {
          Running running = client.start(
              request, {}, [&](Completion c, std::exception_ptr error) { ended += !error && c.text == five; });
          if (i % 4 && running.get().text != five) wrong++;
          while (i % 4 == 0 && !running.wait_for(1ms)) continue;
        }
      }
    });
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(wrong, 0);
  EXPECT_EQ(ended, 200);
}

TEST_F(ClientTest, CancelByHandleEndsTheRequestAlone) {
  serve([](Peer& peer) {
    auto first = peer.expect<Generate>(), second = peer.expect<Generate>();
    peer.send(token(first.id, "x", 1));
    auto cancel = peer.expect<Cancel>();
    EXPECT_EQ(cancel.target, first.id);
    peer.send(Ok{cancel.id});
    peer.send(done(first.id, FinishReason::cancelled));
    peer.send(token(second.id, "y", 1)), peer.send(done(second.id));
  });
  Client client(path_);
  std::promise<void> streaming;
  Running first = client.start(Generate(), [&](const Token&) { streaming.set_value(); });
  Running second = client.start(Generate());
  streaming.get_future().wait();
  first.cancel();
  Completion completion = first.get();
  EXPECT_EQ(completion.finish_reason, FinishReason::cancelled);
  EXPECT_EQ(completion.text, "x");
  EXPECT_EQ(second.get().finish_reason, FinishReason::stop);
  first.cancel();  // after the end: nothing happens
  EXPECT_EQ(server_->trouble(), "");
}

TEST_F(ClientTest, AnInterruptedCallIsCancelledOnce) {
  int cancels = 0;
  serve([&](Peer& peer) {
    auto request = peer.expect<Generate>();
    auto cancel = peer.expect<Cancel>();
    cancels++;
    EXPECT_EQ(cancel.target, request.id);
    std::this_thread::sleep_for(250ms);  // it is asked again meanwhile
    peer.send(done(request.id, FinishReason::cancelled));
    while (peer.receive()) cancels++;
  });
  std::atomic<bool> interrupted = false;
  {
    Client client(ClientOptions{.socket_path = path_, .interrupted = [&] { return interrupted.load(); }});
    std::thread later([&] { std::this_thread::sleep_for(30ms), interrupted = true; });
    EXPECT_EQ(client.generate(Generate()).finish_reason, FinishReason::cancelled);
    later.join();
  }
  server_.reset();
  EXPECT_EQ(cancels, 1);
}

TEST_F(ClientTest, ASignalWakesTheWaitAtOnce) {
  serve([](Peer& peer) {
    auto request = peer.expect<Generate>();
    kill(getpid(), SIGUSR1);
    auto cancel = peer.expect<Cancel>();
    peer.send(done(request.id, FinishReason::cancelled)), peer.send(Ok{cancel.id});
  });
  static volatile sig_atomic_t signalled = 0;
  struct sigaction action{};
  action.sa_handler = [](int) { signalled = 1; };
  sigaction(SIGUSR1, &action, nullptr);
  Client client(ClientOptions{.socket_path = path_, .interrupted = [] { return signalled != 0; }});
  EXPECT_EQ(client.generate(Generate()).finish_reason, FinishReason::cancelled);
}

TEST_F(ClientTest, WhatACallbackThrowsCancelsAndComesOut) {
  serve([](Peer& peer) {
    auto request = peer.expect<Generate>();
    peer.send(token(request.id, "x", 1)), peer.send(token(request.id, "y", 2));
    EXPECT_EQ(peer.expect<Cancel>().target, request.id);
    peer.send(done(request.id, FinishReason::cancelled));
    answer_everything(peer);
  });
  Client client(path_);
  int calls = 0;
  EXPECT_THROW(client.generate(Generate(), [&](const Token&) { calls++, throw std::out_of_range("enough"); }),
               std::out_of_range);
  EXPECT_EQ(calls, 1);
  client.status();  // the connection lives on
}

TEST_F(ClientTest, ABlockingCallInACallbackIsRefused) {
  serve(answer_everything);
  Client client(path_);
  EXPECT_THROW(client.generate(Generate(), [&](const Token&) { client.status(); }), std::logic_error);
  client.status();
}

}  // namespace
}  // namespace ellm::client
