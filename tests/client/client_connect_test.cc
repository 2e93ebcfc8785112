// How the client library finds the daemon, greets it, waits for it, and what it sends again after a restart.
#include <gtest/gtest.h>
#include <sys/stat.h>

#include <atomic>
#include <fstream>
#include <future>
#include <thread>

#include "client/places.h"
#include "tests/client/client_fixture.h"

namespace ellm::client {
namespace {

using namespace std::chrono_literals;

TEST_F(ClientTest, HelloIsChecked) {
  auto error_with = [&](FakeServer::Script script) {
    serve_raw(std::move(script));
    ConnectionError error = connection_error([&] { Client client(options(0ms)); });
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
  auto error_at = [](const std::string& path) {
    return connection_error([&] { Client client({.socket_path = path, .wait = 0ms}); });
  };
  EXPECT_EQ(
      error_at(path_).what(),
      "no ellmd at " + path_ +
          ": start it with `ellmd` or `systemctl start ellmd`, or name another socket with --socket or $ELLM_SOCKET");
  EXPECT_EQ(error_at(path_).kind(), Kind::absent);

  int fd = socket(AF_UNIX, SOCK_STREAM, 0);  // bound once, listens no more
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

// ---- a daemon that is not there yet, or no longer ----------------------------------------------------------

TEST_F(ClientTest, ADaemonThatComesLaterIsWaitedFor) {
  std::string elsewhere = directory_ + "/later";
  path_ = elsewhere + "/ellmd.sock";  // not even the directory is there
  std::thread later([&] {
    std::this_thread::sleep_for(60ms);
    mkdir(elsewhere.c_str(), 0700);
    std::this_thread::sleep_for(60ms);
    serve(answer_everything);
  });
  Client client(options(20s));
  client.status();
  later.join();
}

TEST_F(ClientTest, TheWaitIsBounded) {
  auto begin = std::chrono::steady_clock::now();
  EXPECT_EQ(connection_error([&] { Client client(options(80ms)); }).kind(), Kind::absent);
  EXPECT_GE(std::chrono::steady_clock::now() - begin, 80ms);
}

TEST_F(ClientTest, AnInterruptionEndsTheWait) {
  ClientOptions waiting = options(1h);
  waiting.interrupted = [calls = 0]() mutable { return ++calls == 3; };
  EXPECT_EQ(client_error([&] { Client client(waiting); }).code(), ErrorCode::cancelled);
}

TEST_F(ClientTest, ASocketThatIsActivatedLaterIsWaitedFor) {
  int listener = socket(AF_UNIX, SOCK_STREAM, 0);  // what systemd does before the daemon starts
  sockaddr_un address{AF_UNIX, {}};
  strncpy(address.sun_path, path_.c_str(), sizeof address.sun_path - 1);
  ASSERT_EQ(bind(listener, reinterpret_cast<sockaddr*>(&address), sizeof address), 0);
  ASSERT_EQ(listen(listener, 16), 0);
  std::thread daemon([&] {
    std::this_thread::sleep_for(150ms);
    int fd = accept(listener, nullptr, nullptr);
    Peer peer(fd);
    peer.say_hello(), answer_everything(peer);
    close(fd);
  });
  {
    Client client(options(0ms));  // a socket that listens is a daemon that is there
    client.status();
  }
  daemon.join();
  close(listener);
}

TEST_F(ClientTest, ARestartBetweenCallsIsNotNoticed) {
  serve(answer_everything);
  Client client(options(20s));
  for (int restart = 0; restart < 3; restart++) {
    server_.reset();  // between connecting and the first request, too
    std::thread later([&] { std::this_thread::sleep_for(40ms), serve(answer_everything); });
    Generate request;
    request.prompt = "x";
    EXPECT_EQ(restart == 1 ? client.start(request).get().text : client.generate(request).text, "xxxxx");
    later.join();
  }
}

TEST_F(ClientTest, ARequestThatWasNotSentWholeIsSentAgain) {
  std::atomic<int> connections = 0;
  serve([&](Peer& peer) {
    if (connections++ == 0) return;  // dies while the request is sent
    auto request = peer.expect<Generate>();
    peer.send(token(request.id, std::to_string(request.prompt.size()), 1)), peer.send(done(request.id));
  });
  Client client(options(20s));
  Generate request;
  request.prompt.assign(30 << 20, 'p');
  EXPECT_EQ(client.generate(request).text, std::to_string(30 << 20));
}

TEST_F(ClientTest, ARequestThatMayHaveRunIsNotSentAgain) {
  std::atomic<int> requests = 0;
  serve([&](Peer& peer) {
    auto request = peer.expect<Generate>();
    requests++;
    if (request.prompt == "half") peer.send(token(request.id, "half an", 1));
  });
  for (const char* prompt : {"half", "none"}) {
    Client client(options(20s));
    Generate request;
    request.prompt = prompt;
    std::string seen;
    ConnectionError error =
        connection_error([&] { client.generate(request, [&](const Token& t) { seen += t.text; }); });
    EXPECT_EQ(error.kind(), Kind::lost);
    EXPECT_TRUE(error.request_sent());
    EXPECT_TRUE(contains(error.what(), "after the request was sent: it may have run")) << error.what();
    EXPECT_EQ(seen, request.prompt == "half" ? "half an" : "");
  }
  EXPECT_EQ(requests, 2);
}

TEST_F(ClientTest, WhatAStoppingDaemonRefusesGoesToTheNextOne) {
  std::atomic<int> connections = 0;
  std::promise<void> ended;
  serve([&](Peer& peer) {
    if (connections++ > 0) return answer_everything(peer);
    auto running = peer.expect<Generate>();
    auto refused = peer.expect<Status>();
    peer.send(Error{refused.id, ErrorCode::shutting_down, "ellmd is shutting down", 0});
    ended.get_future().wait();  // it lets what runs end
    peer.send(token(running.id, "whole", 1)), peer.send(done(running.id));
  });
  Client client(options(20s));
  Running running = client.start(Generate());
  client.status();
  client.status();
  EXPECT_EQ(connections, 2);
  ended.set_value();
  EXPECT_EQ(running.get().text, "whole");
}

TEST_F(ClientTest, WithoutANextDaemonItsRefusalIsTheError) {
  serve([&](Peer& peer) {
    unlink(path_.c_str());
    auto refused = peer.expect<Status>();
    peer.send(Error{refused.id, ErrorCode::shutting_down, "ellmd is shutting down", 0});
    peer.receive();
  });
  Client client(options(50ms));
  EXPECT_EQ(client_error([&] { client.status(); }).code(), ErrorCode::shutting_down);
}

}  // namespace
}  // namespace ellm::client
