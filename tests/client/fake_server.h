// A server that speaks the protocol and says what the test wants: one thread per connection runs the test's script.
#pragma once
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <atomic>
#include <cstring>
#include <functional>
#include <mutex>
#include <optional>
#include <stdexcept>
#include <string>
#include <thread>
#include <vector>

#include "client/codec.h"

namespace ellm::client {

/// The server's end of a connection.
class Peer {
 public:
  explicit Peer(int fd) : fd_(fd) {}

  void send_raw(std::string_view bytes) {
    std::lock_guard lock(send_mutex_);
    while (!bytes.empty()) {
      ssize_t sent = ::send(fd_, bytes.data(), bytes.size(), MSG_NOSIGNAL);
      if (sent <= 0) return;
      bytes.remove_prefix(static_cast<size_t>(sent));
    }
  }
  void send(const Message& message) { send_raw(encode_frame(message)); }

  /// The client's next message; nothing when it has gone.
  std::optional<Message> receive() {
    unsigned char header[4];
    if (!read_whole(header, sizeof header)) return std::nullopt;
    std::string body(frame_length(header), '\0');
    if (!read_whole(body.data(), body.size())) return std::nullopt;
    auto decoded = decode(body);
    if (auto* failure = std::get_if<DecodeFailure>(&decoded)) throw std::runtime_error(failure->message);
    return std::get<Message>(std::move(decoded));
  }
  template <class M>
  M expect() {
    auto message = receive();
    if (!message || !std::holds_alternative<M>(*message)) throw std::runtime_error(std::string("expected ") + M::kName);
    return std::get<M>(std::move(*message));
  }
  void say_hello(std::vector<std::string> features = {"fake"}) {
    expect<Hello>();
    Hello hello;
    hello.software = "fake 1";
    hello.features = std::move(features);
    send(hello);
  }
  /// What has come with the messages so far, to be closed by the caller.
  std::vector<int> take_descriptors() { return std::exchange(descriptors_, {}); }

 private:
  bool read_whole(void* to, size_t bytes) {
    auto* at = static_cast<char*>(to);
    while (bytes > 0) {
      iovec part{at, bytes};
      alignas(cmsghdr) char control[CMSG_SPACE(16 * sizeof(int))];
      msghdr header{};
      header.msg_iov = &part, header.msg_iovlen = 1;
      header.msg_control = control, header.msg_controllen = sizeof control;
      ssize_t got = recvmsg(fd_, &header, MSG_CMSG_CLOEXEC);
      if (got <= 0) return false;
      for (cmsghdr* each = CMSG_FIRSTHDR(&header); each; each = CMSG_NXTHDR(&header, each)) {
        const auto* first = reinterpret_cast<const int*>(CMSG_DATA(each));
        descriptors_.insert(descriptors_.end(), first, first + (each->cmsg_len - CMSG_LEN(0)) / sizeof(int));
      }
      at += got, bytes -= static_cast<size_t>(got);
    }
    return true;
  }
  int fd_;
  std::vector<int> descriptors_;
  std::mutex send_mutex_;
};

class FakeServer {
 public:
  using Script = std::function<void(Peer&)>;

  FakeServer(const std::string& path, Script script) : path_(path), script_(std::move(script)) {
    sockaddr_un address{};
    address.sun_family = AF_UNIX;
    strncpy(address.sun_path, path.c_str(), sizeof address.sun_path - 1);
    unlink(path.c_str());
    listener_ = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
    if (bind(listener_, reinterpret_cast<sockaddr*>(&address), sizeof address) < 0 || listen(listener_, 16) < 0)
      throw std::runtime_error("cannot listen at " + path + ": " + strerror(errno));
    accept_thread_ = std::thread([this] { accept_all(); });
  }
  ~FakeServer() {
    shutdown(listener_, SHUT_RDWR);
    accept_thread_.join();
    {
      std::lock_guard lock(mutex_);
      for (int fd : open_) shutdown(fd, SHUT_RDWR);
    }
    for (std::thread& thread : threads_) thread.join();
    close(listener_);
    unlink(path_.c_str());
  }
  /// Closes every connection, as a daemon that crashes does.
  void drop_all() {
    std::lock_guard lock(mutex_);
    for (int fd : open_) shutdown(fd, SHUT_RDWR);
  }
  void wait() { accept_thread_.join(); }
  /// What went wrong in a script, or empty.
  std::string trouble() {
    std::lock_guard lock(mutex_);
    return trouble_;
  }

 private:
  void accept_all() {
    for (;;) {
      int fd = accept4(listener_, nullptr, nullptr, SOCK_CLOEXEC);
      if (fd < 0) return;
      std::lock_guard lock(mutex_);
      open_.push_back(fd);
      threads_.emplace_back([this, fd] { serve(fd); });
    }
  }
  void serve(int fd) {
    Peer peer(fd);
    std::string trouble;
    try {
      script_(peer);
    } catch (const std::exception& error) {
      trouble = error.what();
    }
    std::lock_guard lock(mutex_);
    if (!trouble.empty()) trouble_ = trouble;
    std::erase(open_, fd);
    close(fd);
  }

  std::string path_;
  Script script_;
  int listener_;
  std::thread accept_thread_;
  std::mutex mutex_;
  std::vector<int> open_;
  std::vector<std::thread> threads_;
  std::string trouble_;
};

}  // namespace ellm::client
