// What the client library's tests share: a server that the test scripts, and what calls throw.
#pragma once
#include <gtest/gtest.h>

#include <cstdlib>
#include <memory>
#include <string>

#include "client/client.h"
#include "tests/client/fake_server.h"

namespace ellm::client {

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
        path_, [script = std::move(script), this](Peer& peer) { peer.say_hello(features_), script(peer); });
  }
  void serve_raw(FakeServer::Script script) { server_ = std::make_unique<FakeServer>(path_, std::move(script)); }

  /// A client that waits no longer than this for the server.
  ClientOptions options(std::chrono::milliseconds wait) const { return {.socket_path = path_, .wait = wait}; }

  std::string directory_, path_;
  std::vector<std::string> features_ = {"fake"};
  std::unique_ptr<FakeServer> server_;
};

inline Token token(uint32_t id, const std::string& text, uint32_t number) { return Token{id, text, {number}, {}}; }

inline Done done(uint32_t id, FinishReason reason = FinishReason::stop) {
  Done message;
  message.id = id, message.finish_reason = reason, message.model = "fake", message.seed = 7;
  message.usage.completion_tokens = 2;
  return message;
}

/// Answers every request of every kind until the client goes.
inline void answer_everything(Peer& peer) {
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

inline bool contains(const std::string& text, const std::string& part) { return text.find(part) != std::string::npos; }

}  // namespace ellm::client
