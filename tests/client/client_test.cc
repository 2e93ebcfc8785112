// The client library against a server that the test scripts.
#include "client/client.h"

#include <gtest/gtest.h>
#include <sys/stat.h>

#include <cmath>
#include <csignal>
#include <cstdlib>
#include <fstream>
#include <future>

#include "client/places.h"
#include "tests/client/fake_server.h"

namespace ellm::client {
namespace {

using namespace std::chrono_literals;
using Kind = ConnectionError::Kind;

class ClientTest : public testing::Test {
 protected:
  ClientTest() {
    char name[] = "/tmp/ellm-client-XXXXXX";
    directory_ = mkdtemp(name);
    path_ = directory_ + "/ellmd.sock";
  }
  ~ClientTest() override {
    server_.reset();
    std::string command = "rm -r " + directory_;
    EXPECT_EQ(system(command.c_str()), 0);
  }
  /// Serves every connection with hello and `script`.
  void serve(FakeServer::Script script) {
    server_ = std::make_unique<FakeServer>(
        path_, [script = std::move(script)](Peer& peer) { peer.say_hello(), script(peer); });
  }
  void serve_raw(FakeServer::Script script) { server_ = std::make_unique<FakeServer>(path_, std::move(script)); }

  std::string directory_, path_;
  std::unique_ptr<FakeServer> server_;
};

Token token(uint32_t id, const std::string& text, uint32_t number) { return Token{id, text, {number}, {}}; }

Done done(uint32_t id, FinishReason reason = FinishReason::stop) {
  Done message;
  message.id = id, message.finish_reason = reason, message.model = "fake", message.seed = 7;
  message.usage.completion_tokens = 2;
  return message;
}

/// Answers every request of every kind until the client goes.
void answer_everything(Peer& peer) {
  while (auto message = peer.receive()) {
    std::visit(
        [&]<class M>(const M& m) {
          if constexpr (std::is_same_v<M, Generate>) {
            for (uint32_t i = 0; i < 5; i++) peer.send(token(m.id, m.prompt, i));
            peer.send(done(m.id));
          } else if constexpr (std::is_same_v<M, Tokenize>) {
            peer.send(TokenizeReply{m.id, {static_cast<uint32_t>(m.text.size())}, {m.text}});
          } else if constexpr (std::is_same_v<M, Status>) {
            StatusReply reply;
            reply.id = m.id;
            peer.send(reply);
          } else if constexpr (std::is_same_v<M, Cancel>) {
            peer.send(Error{m.id, ErrorCode::no_such_request, "no request " + std::to_string(m.target), 0});
          }
        },
        *message);
  }
}

template <class F>
ConnectionError connection_error(F&& call) {
  try {
    call();
  } catch (const ConnectionError& error) {
    return error;
  }
  ADD_FAILURE() << "no ConnectionError";
  return ConnectionError(Kind::lost, "");
}

template <class F>
ClientError client_error(F&& call) {
  try {
    call();
  } catch (const ClientError& error) {
    return error;
  }
  ADD_FAILURE() << "no ClientError";
  return ClientError(ErrorCode::internal, "");
}

bool contains(const std::string& text, const std::string& part) { return text.find(part) != std::string::npos; }

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
    peer.send(ScoreReply{score.id, {3}, {-3}, {{{3, -3.f}}}, true, {3, 0, 0, 0, 0}});
    StatusReply status;
    status.id = peer.expect<Status>().id, status.version = "9";
    peer.send(status);
    auto models = peer.expect<Models>();
    EXPECT_EQ(models.action, ModelsAction::load);
    ModelsReply reply{models.id, std::vector<ModelInfo>(1)};
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
  Scores scores = client.score({0, "", "abc", {}, false, 2});
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

TEST_F(ClientTest, EveryErrorCodeComesOutAsItIs) {
  serve([](Peer& peer) {
    for (uint32_t code = 1; code <= 12; code++) {
      auto request = peer.expect<Tokenize>();
      peer.send(Error{request.id, static_cast<ErrorCode>(code), "because " + std::to_string(code), code * 10});
    }
  });
  Client client(path_);
  for (uint32_t code = 1; code <= 12; code++) {
    ClientError error = client_error([&] { client.tokenize({0, "", "x", true, true}); });
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
  first.cancel();               // after the end: nothing happens
  EXPECT_EQ(server_->trouble(), "");
}

TEST_F(ClientTest, AnInterruptedCallIsCancelledOnce) {
  int cancels = 0;
  serve([&](Peer& peer) {
    auto request = peer.expect<Generate>();
    auto cancel = peer.expect<Cancel>();
    cancels++;
    EXPECT_EQ(cancel.target, request.id);
    std::this_thread::sleep_for(250ms);          // it is asked again meanwhile
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
  client.status();              // the connection lives on
}

TEST_F(ClientTest, ABlockingCallInACallbackIsRefused) {
  serve(answer_everything);
  Client client(path_);
  EXPECT_THROW(client.generate(Generate(), [&](const Token&) { client.status(); }), std::logic_error);
  client.status();
}

TEST_F(ClientTest, AServerThatDiesFailsEveryRequest) {
  serve([](Peer& peer) {
    auto first = peer.expect<Generate>();
    peer.expect<Generate>();
    peer.send(token(first.id, "x", 1));
  });
  Client client(path_);
  Running background = client.start(Generate());
  ConnectionError error = connection_error([&] { client.generate(Generate()); });
  EXPECT_EQ(error.kind(), Kind::lost);
  EXPECT_TRUE(contains(error.what(), "ellmd closed the connection")) << error.what();
  EXPECT_EQ(connection_error([&] { background.get(); }).kind(), Kind::lost);
  EXPECT_EQ(connection_error([&] { client.status(); }).kind(), Kind::lost);
}

TEST_F(ClientTest, ClosingTheClientEndsWhatRunsInTheBackground) {
  serve([](Peer& peer) { while (peer.receive()) continue; });
  std::optional<Running> running;
  std::promise<bool> failed;
  {
    Client client(path_);
    running =
        client.start(Generate(), {}, [&](Completion, std::exception_ptr error) { failed.set_value(error != nullptr); });
  }
  EXPECT_TRUE(failed.get_future().get());
  ConnectionError error = connection_error([&] { running->get(); });
  EXPECT_TRUE(contains(error.what(), "the client was closed")) << error.what();
}

TEST_F(ClientTest, FramesArriveInAnyPieces) {
  serve([](Peer& peer) {
    auto request = peer.expect<Generate>();
    std::string bytes = encode_frame(token(request.id, "one", 1)) + encode_frame(token(request.id, "two", 2)) +
                        encode_frame(done(request.id));
    for (char byte : bytes) peer.send_raw({&byte, 1});
    request = peer.expect<Generate>();
    peer.send_raw(encode_frame(token(request.id, "one", 1)) + encode_frame(done(request.id)));
    request = peer.expect<Generate>();
    peer.send_raw(encode_frame(token(request.id, std::string(3 << 20, 'x'), 1)) + encode_frame(done(request.id)));
    request = peer.expect<Generate>();
    peer.send_raw(encode_frame(done(request.id)).substr(0, 9));       // and dies
  });
  Client client(path_);
  EXPECT_EQ(client.generate(Generate()).text, "onetwo");
  EXPECT_EQ(client.generate(Generate()).text, "one");
  EXPECT_EQ(client.generate(Generate()).text.size(), size_t{3} << 20);
  EXPECT_EQ(connection_error([&] { client.generate(Generate()); }).kind(), Kind::lost);
}

TEST_F(ClientTest, ALargeRequestIsSentWhileTheServerAnswers) {
  serve([](Peer& peer) {
    auto request = peer.expect<Generate>();
    EXPECT_EQ(request.prompt.size(), size_t{20} << 20);
    peer.send(done(request.id));
  });
  Client client(path_);
  Generate request;
  request.prompt.assign(20 << 20, 'p');
  EXPECT_EQ(client.generate(request).model, "fake");
  request.prompt.assign(70 << 20, 'p');
  EXPECT_EQ(client_error([&] { client.generate(request); }).code(), ErrorCode::too_large);
}

TEST_F(ClientTest, ARefusalOfAFrameIsReadThoughSendingFailed) {
  serve([](Peer& peer) {         // reads nothing of the request, says why, and closes
    peer.send(Error{0, ErrorCode::too_large, "a frame may have 1 MiB", 0});
  });
  Client client(path_);
  Generate request;
  request.prompt.assign(30 << 20, 'p');
  ClientError error = client_error([&] { client.generate(request); });
  EXPECT_EQ(error.code(), ErrorCode::too_large);
  EXPECT_STREQ(error.what(), "a frame may have 1 MiB");
}

TEST_F(ClientTest, MessagesOfTheFutureAndOfEndedRequestsAreIgnored) {
  serve([](Peer& peer) {
    auto request = peer.expect<Generate>();
    std::string unknown = "\x92\xcd\x03\xe7\x01";
    peer.send_raw(std::string("\x05\x00\x00\x00", 4) + unknown);
    peer.send(token(4242, "not yours", 1));
    peer.send(token(request.id, "x", 1)), peer.send(done(request.id)), peer.send(token(request.id, "late", 1));
    auto status = peer.expect<Status>();
    StatusReply reply;
    reply.id = status.id;
    peer.send(reply);
  });
  Client client(path_);
  EXPECT_EQ(client.generate(Generate()).text, "x");
  client.status();
}

TEST_F(ClientTest, AServerThatTalksNonsenseIsLeft) {
  const std::pair<std::string, std::string> kCases[] = {
      {std::string("\x03\x00\x00\x00\x92\x20\xa1", 7),
       "damaged message"},  // [token, a string of one byte that is not there
      {std::string("\xff\xff\xff\xff", 4), "a frame of 4294967295 bytes"},
      {"", "unexpected status_reply"},
  };
  for (const auto& [bytes, expected] : kCases) {
    serve([&bytes = bytes](Peer& peer) {
      auto request = peer.expect<Generate>();
      StatusReply wrong;
      wrong.id = request.id;
      bytes.empty() ? peer.send(wrong) : peer.send_raw(bytes);
      peer.receive();
    });
    Client client(path_);
    ConnectionError error = connection_error([&] { client.generate(Generate()); });
    EXPECT_EQ(error.kind(), Kind::protocol);
    EXPECT_TRUE(contains(error.what(), expected)) << error.what();
    server_.reset();
  }
}

// ---- connecting ------------------------------------------------------------------------------------------

TEST_F(ClientTest, HelloIsChecked) {
  auto error_with = [&](FakeServer::Script script) {
    serve_raw(std::move(script));
    ConnectionError error = connection_error([&] { Client client(path_); });
    server_.reset();
    return std::string(error.what());
  };
  EXPECT_TRUE(contains(error_with([](Peer& peer) {
                         peer.expect<Hello>();
                         peer.send(Hello{9, "ellmd 9", {}});
                       }),
                       "ellmd (ellmd 9) speaks protocol version 9, this program version 1: install the same release"));
  EXPECT_TRUE(contains(error_with([](Peer& peer) {
                         peer.expect<Hello>();
                         peer.send(Error{0, ErrorCode::unsupported_version, "version 1 is gone", 0});
                       }),
                       "version 1 is gone"));
  EXPECT_TRUE(contains(error_with([](Peer& peer) { peer.expect<Hello>(), peer.send(Ok{1}); }), "did not say hello"));
  EXPECT_TRUE(contains(error_with([](Peer& peer) { peer.expect<Hello>(); }), "closed the connection at once"));
  EXPECT_TRUE(
      contains(error_with([](Peer& peer) { peer.expect<Hello>(), peer.send_raw("HTTP/1.1 400 Bad Request\r\n\r\n"); }),
               "is not ellmd"));
  EXPECT_TRUE(
      contains(error_with([](Peer& peer) { peer.expect<Hello>(), peer.send_raw(std::string("\x01\0\0\0x", 5)); }),
               "does not speak ellmd's protocol"));
}

TEST_F(ClientTest, ABusyDaemonSaysSoAtHello) {
  serve_raw(
      [](Peer& peer) { peer.expect<Hello>(), peer.send(Error{0, ErrorCode::busy, "16 connections already", 500}); });
  ClientError error = client_error([&] { Client client(path_); });
  EXPECT_EQ(error.code(), ErrorCode::busy);
  EXPECT_EQ(error.retry_after_ms(), 500u);
}

TEST_F(ClientTest, ConnectionErrorsSayWhatToDo) {
  auto error_at = [](const std::string& path) { return connection_error([&] { Client client(path); }); };
  EXPECT_EQ(
      error_at(path_).what(),
      "no ellmd at " + path_ +
          ": start it with `ellmd` or `systemctl start ellmd`, or name another socket with --socket or $ELLM_SOCKET");
  EXPECT_EQ(error_at(path_).kind(), Kind::absent);

  int fd = socket(AF_UNIX, SOCK_STREAM, 0);                  // bound once, listens no more
  sockaddr_un address{AF_UNIX, {}};
  strncpy(address.sun_path, path_.c_str(), sizeof address.sun_path - 1);
  ASSERT_EQ(bind(fd, reinterpret_cast<sockaddr*>(&address), sizeof address), 0);
  close(fd);
  EXPECT_TRUE(contains(error_at(path_).what(), "no ellmd answers at " + path_)) << error_at(path_).what();

  EXPECT_TRUE(contains(error_at(directory_ + "/" + std::string(200, 'x')).what(), "must have 1 to 107 bytes"));
  std::string file = directory_ + "/file";
  std::ofstream(file) << "text";
  EXPECT_EQ(error_at(file).kind(), Kind::absent);
  if (getuid() != 0) {
    chmod(path_.c_str(), 0);
    EXPECT_EQ(error_at(path_).kind(), Kind::denied);
  }
}

TEST_F(ClientTest, TheSocketIsSoughtInTheDocumentedOrder) {
  setenv("ELLM_SOCKET", "/named/here.sock", 1);
  setenv("XDG_RUNTIME_DIR", directory_.c_str(), 1);
  EXPECT_EQ(default_socket_path(), "/named/here.sock");
  setenv("ELLM_SOCKET", "", 1);
  EXPECT_EQ(default_socket_path(),
            access("/run/ellm/ellmd.sock", F_OK) == 0 ? "/run/ellm/ellmd.sock" : directory_ + "/ellm/ellmd.sock");
  ASSERT_EQ(mkdir((directory_ + "/ellm").c_str(), 0700), 0);
  std::ofstream(directory_ + "/ellm/ellmd.sock") << "";
  EXPECT_EQ(default_socket_path(), directory_ + "/ellm/ellmd.sock");
  unsetenv("XDG_RUNTIME_DIR"), unsetenv("ELLM_SOCKET");
  EXPECT_EQ(default_socket_path(), "/run/ellm/ellmd.sock");
}

}  // namespace
}  // namespace ellm::client
