// Plain system calls: a client waits for one socket, an event loop would only cost start-up time.
#include "client/unix_socket.h"

#include <poll.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>

#include "client/codec.h"
#include "client/errors.h"

namespace ellm::client {
namespace {

using Kind = ConnectionError::Kind;
constexpr size_t kChunkBytes = 64 << 10;

[[noreturn]] void fail_to_connect(const std::string& path, int error) {
  static const char* const kHowToStart =
      ": start it with `ellmd` or `systemctl start ellmd`, or name another socket with --socket or $ELLM_SOCKET";
  switch (error) {
    case ENOENT: case ENOTDIR: throw ConnectionError(Kind::absent, "no ellmd at " + path + kHowToStart);
    case ECONNREFUSED:
      throw ConnectionError(Kind::absent,
                            "no ellmd answers at " + path + " (the socket of one that ended)" + kHowToStart);
    case EACCES: case EPERM:
      throw ConnectionError(Kind::denied, "no permission to connect to " + path +
                                              ": an administrator can add you to its group (`ls -l " + path + "`)");
    case EPROTOTYPE: case ENOTSOCK:
      throw ConnectionError(Kind::bad_path, path + " is not ellmd's socket: name it with --socket or $ELLM_SOCKET");
    default: throw ConnectionError(Kind::absent, "cannot connect to " + path + ": " + strerror(error));
  }
}

}  // namespace

UnixSocket::UnixSocket(const std::string& path) : chunk_(std::make_unique_for_overwrite<char[]>(kChunkBytes)) {
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  if (path.empty() || path.size() >= sizeof address.sun_path)
    throw ConnectionError(Kind::bad_path, "socket path '" + path + "' must have 1 to " +
                                              std::to_string(sizeof address.sun_path - 1) +
                                              " bytes: name a shorter one with --socket or $ELLM_SOCKET");
  memcpy(address.sun_path, path.data(), path.size());
  fd_ = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
  if (fd_ < 0) throw ConnectionError(Kind::absent, std::string("cannot make a socket: ") + strerror(errno));
  int result;
  do result = connect(fd_, reinterpret_cast<const sockaddr*>(&address), sizeof address);
  while (result < 0 && errno == EINTR);
  if (result < 0) {
    int error = errno;
    close(fd_);
    fail_to_connect(path, error);
  }
}

UnixSocket::~UnixSocket() { close(fd_); }

bool UnixSocket::send(std::string_view frame) {
  while (!frame.empty()) {
    ssize_t sent = ::send(fd_, frame.data(), frame.size(), MSG_NOSIGNAL);
    if (sent < 0 && errno == EINTR) continue;
    if (sent < 0) return false;
    frame.remove_prefix(static_cast<size_t>(sent));
  }
  return true;
}

bool UnixSocket::at_end() const {
  char byte;
  return recv(fd_, &byte, 1, MSG_PEEK | MSG_DONTWAIT) == 0;
}

UnixSocket::Wait UnixSocket::wait(int timeout_ms) const {
  pollfd poll_fd{fd_, POLLIN, 0};
  return poll(&poll_fd, 1, timeout_ms) > 0 ? Wait::data : Wait::timeout;
}

bool UnixSocket::receive() {
  received_.erase(0, taken_);
  taken_ = 0;
  ssize_t got;
  do got = recv(fd_, chunk_.get(), kChunkBytes, 0);
  while (got < 0 && errno == EINTR);
  if (got <= 0) return false;
  received_.append(chunk_.get(), static_cast<size_t>(got));
  return true;
}

std::optional<std::string_view> UnixSocket::next_body() {
  std::string_view rest = std::string_view(received_).substr(taken_);
  if (rest.size() < sizeof(uint32_t)) return std::nullopt;
  uint32_t length = frame_length(reinterpret_cast<const unsigned char*>(rest.data()));
  if (length > kMaxFrameBytes)
    throw ConnectionError(Kind::protocol, "a frame of " + std::to_string(length) +
                                              " bytes arrived: the program at this socket is not ellmd");
  if (rest.size() - sizeof(uint32_t) < length) return std::nullopt;
  taken_ += sizeof(uint32_t) + length;
  return rest.substr(sizeof(uint32_t), length);
}

void UnixSocket::shut_down() { shutdown(fd_, SHUT_RDWR); }

}  // namespace ellm::client
