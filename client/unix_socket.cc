// Plain system calls: a client waits for one socket, an event loop would only cost start-up time.
#include "client/unix_socket.h"

#include <poll.h>
#include <sys/socket.h>
#include <sys/time.h>
#include <sys/uio.h>
#include <sys/un.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <vector>

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
    case ENOENT:
    case ENOTDIR: throw ConnectionError(Kind::absent, "no ellmd at " + path + kHowToStart);
    case ECONNREFUSED:
      throw ConnectionError(Kind::absent,
                            "no ellmd answers at " + path + " (the socket of one that ended)" + kHowToStart);
    case EACCES:
    case EPERM:
      throw ConnectionError(Kind::denied, "no permission to connect to " + path +
                                              ": an administrator can add you to its group (`ls -l " + path + "`)");
    case EPROTOTYPE:
    case ENOTSOCK:
      throw ConnectionError(Kind::bad_path, path + " is not ellmd's socket: name it with --socket or $ELLM_SOCKET");
    default: throw ConnectionError(Kind::absent, "cannot connect to " + path + ": " + strerror(error));
  }
}

/// The descriptors go with the first byte.
ssize_t send_some(int fd, std::string_view bytes, std::span<const int> descriptors) {
  if (descriptors.empty()) return ::send(fd, bytes.data(), bytes.size(), MSG_NOSIGNAL);
  std::vector<char> control(CMSG_SPACE(descriptors.size_bytes()));
  iovec part{const_cast<char*>(bytes.data()), bytes.size()};
  msghdr message{};
  message.msg_iov = &part;
  message.msg_iovlen = 1;
  message.msg_control = control.data();
  message.msg_controllen = control.size();
  cmsghdr* head = CMSG_FIRSTHDR(&message);
  head->cmsg_level = SOL_SOCKET;
  head->cmsg_type = SCM_RIGHTS;
  head->cmsg_len = CMSG_LEN(descriptors.size_bytes());
  memcpy(CMSG_DATA(head), descriptors.data(), descriptors.size_bytes());
  return sendmsg(fd, &message, MSG_NOSIGNAL);
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

bool UnixSocket::send(std::string_view frame, std::span<const int> descriptors) {
  while (!frame.empty()) {
    ssize_t sent = send_some(fd_, frame, descriptors);
    if (sent < 0 && errno == EINTR) continue;
    if (sent < 0) return false;
    frame.remove_prefix(static_cast<size_t>(sent));
    descriptors = {};
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
  std::optional<bool> more;
  do more = receive_once();
  while (!more);
  return *more;
}

/// Absent: interrupted, or past the socket's timeout.
std::optional<bool> UnixSocket::receive_once() {
  received_.erase(0, taken_);
  taken_ = 0;
  const ssize_t got = recv(fd_, chunk_.get(), kChunkBytes, 0);
  if (got < 0 && (errno == EINTR || errno == EAGAIN)) return std::nullopt;
  if (got <= 0) return false;
  received_.append(chunk_.get(), static_cast<size_t>(got));
  return true;
}

std::optional<bool> UnixSocket::receive_within(int timeout_ms) {
  if (timeout_ms == 0 && wait(0) == Wait::timeout) return std::nullopt;  // to the socket 0 is without end
  if (timeout_ms != 0 && timeout_ms != receive_timeout_ms_) {
    const int ms = std::max(timeout_ms, 0);
    const timeval time{ms / 1000, ms % 1000 * 1000};
    if (setsockopt(fd_, SOL_SOCKET, SO_RCVTIMEO, &time, sizeof time) != 0) return receive();
    receive_timeout_ms_ = timeout_ms;
  }
  return receive_once();
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
