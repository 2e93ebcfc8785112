// The client library on a connection that breaks, stalls, or brings what nobody expects.
#include <gtest/gtest.h>

#include <future>

#include "tests/client/client_fixture.h"

namespace ellm::client {
namespace {

using namespace std::chrono_literals;

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
  EXPECT_TRUE(error.request_sent());
  EXPECT_TRUE(contains(error.what(), "after the request was sent: it may have run")) << error.what();
  EXPECT_TRUE(connection_error([&] { background.get(); }).request_sent());
  EXPECT_EQ(connection_error([&] { client.status(); }).kind(), Kind::lost);
}

TEST_F(ClientTest, ClosingTheClientEndsWhatRunsInTheBackground) {
  serve([](Peer& peer) {
    while (peer.receive()) continue;
  });
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
    peer.send_raw(encode_frame(done(request.id)).substr(0, 9));  // and dies
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
  serve([](Peer& peer) {  // reads nothing of the request, says why, and closes
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

TEST_F(ClientTest, FieldsOfTheFutureAreIgnoredAndMissingOnesHaveDefaults) {
  auto frame = [](std::string body) {
    return std::string(1, static_cast<char>(body.size())) + std::string(3, '\0') + body;
  };
  serve_raw([&](Peer& peer) {
    peer.expect<Hello>();
    peer.send_raw(
        frame("\x95\x01\x01\xa7later 2\x91\xa1"
              "f\x81\xa1k\xc0"));  // hello, and a map
    EXPECT_EQ(peer.expect<Generate>().id, 1u);
    peer.send_raw(frame(std::string("\x97\x20\x01\xa1x\x91\x05\x90\x00\xa4more", 14)));  // token, and a text
    peer.send_raw(frame(std::string("\x9a\x21\x01\x02\xa1m\x07\x97\x01\x02\x03\x04\x05\x90\x06\x90\x00\x00\xc3",
                                    19)));  // done, its usage longer
    EXPECT_EQ(peer.expect<Generate>().id, 2u);
    peer.send_raw(frame("\x92\x21\x02"));  // an older one's done
  });
  Client client(path_);
  EXPECT_EQ(client.server().software, "later 2");
  Completion completion = client.generate(Generate());
  EXPECT_EQ(completion.text, "x");
  EXPECT_EQ(completion.finish_reason, FinishReason::length);
  EXPECT_EQ(completion.usage.prompt_tokens, 1u);
  EXPECT_EQ(completion.seed, 7u);
  EXPECT_EQ(client.generate(Generate()).finish_reason, FinishReason::stop);
  EXPECT_EQ(server_->trouble(), "");
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

}  // namespace
}  // namespace ellm::client
