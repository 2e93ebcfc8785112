// See listener.h. Two daemons that start together are kept apart by a lock on PATH.lock, which lives as long as the
// daemon; a daemon that holds no lock (systemd's socket) is found by connecting.
#include "daemon/listener.h"

#include <fcntl.h>
#include <grp.h>
#include <sys/file.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <systemd/sd-daemon.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <utility>
#include <vector>

#include "daemon/config.h"

namespace ellm::daemon {
namespace {

constexpr int kBacklog = 1024;

std::string errno_text(const std::string& what) { return what + ": " + std::strerror(errno); }

sockaddr_un address_of(const std::string& path) {
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  if (path.empty() || path.size() >= sizeof address.sun_path) {
    throw ListenError("socket path '" + path + "' has " + std::to_string(path.size()) + " bytes; allowed are 1 to " +
                      std::to_string(sizeof address.sun_path - 1));
  }
  std::memcpy(address.sun_path, path.data(), path.size());
  return address;
}

/// The missing directories above the socket: ours alone, but readable below /run.
void make_parent(const std::string& path) {
  const size_t slash = path.rfind('/');
  if (slash == std::string::npos || slash == 0) return;
  const std::string parent = path.substr(0, slash);
  if (::access(parent.c_str(), F_OK) == 0) return;
  make_parent(parent);
  const mode_t mode = path.starts_with("/run/ellm/") ? 0755 : 0700;
  if (::mkdir(parent.c_str(), mode) != 0 && errno != EEXIST)
    throw ListenError(errno_text("cannot make directory " + parent));
}

[[noreturn]] void throw_taken(const std::string& path, pid_t pid) {
  const std::string who = pid > 0 ? "another ellmd (pid " + std::to_string(pid) + ") listens on " + path
                                  : "another ellmd holds " + path + ".lock";
  throw ListenError(who + "; stop it or choose another socket (--socket)");
}

/// Who listens on a socket file: 0 where nobody does.
pid_t listening_pid(const sockaddr_un& address) {
  const int fd = ::socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
  if (fd < 0) throw ListenError(errno_text("socket"));
  pid_t pid = 0;
  const int result = ::connect(fd, reinterpret_cast<const sockaddr*>(&address), sizeof address);
  const int error = errno;
  if (result == 0 || error == EAGAIN) {  // EAGAIN: its backlog is full
    ucred peer{};
    socklen_t size = sizeof peer;
    pid = result == 0 && ::getsockopt(fd, SOL_SOCKET, SO_PEERCRED, &peer, &size) == 0 ? peer.pid : -1;
  }
  ::close(fd);
  if (result != 0 && error != EAGAIN && error != ECONNREFUSED && error != ENOENT) {
    errno = error;
    throw ListenError(errno_text(address.sun_path));
  }
  return pid;
}

}  // namespace

Listener::Listener(Listener&& other) noexcept
    : fd_(std::exchange(other.fd_, -1)), lock_fd_(std::exchange(other.lock_fd_, -1)), path_(std::move(other.path_)),
      made_(std::exchange(other.made_, false)) {}

Listener::~Listener() {
  close();
  if (lock_fd_ >= 0) ::close(lock_fd_);
}

void Listener::close() {
  if (std::exchange(made_, false)) {
    ::unlink(path_.c_str());
    ::unlink((path_ + ".lock").c_str());
  }
  if (fd_ >= 0) ::close(std::exchange(fd_, -1));
}

Listener Listener::open(const std::string& path, const std::vector<int>& passed) {
  if (passed.size() > 1)
    throw ListenError("systemd passed in " + std::to_string(passed.size()) + " sockets; expected one");
  if (passed.empty()) return bind(path);
  Listener listener;
  listener.fd_ = passed.front();
  if (::sd_is_socket_unix(listener.fd_, SOCK_STREAM, 1, nullptr, 0) <= 0) {
    throw ListenError("systemd passed in something other than a listening Unix stream socket");
  }
  sockaddr_un address{};
  socklen_t size = sizeof address;
  ::getsockname(listener.fd_, reinterpret_cast<sockaddr*>(&address), &size);
  listener.path_ = address.sun_path;
  return listener;
}

std::optional<Listener> Listener::open_metrics(const std::string& path, const std::vector<int>& passed) {
  if (passed.empty()) return path.empty() ? std::nullopt : std::optional(bind(path));
  Listener listener;
  listener.fd_ = passed.front();
  if (passed.size() > 1 || ::sd_is_socket(listener.fd_, AF_UNSPEC, SOCK_STREAM, 1) <= 0)
    throw ListenError("systemd passed in something other than one listening stream socket for metrics");
  return listener;
}

Listener Listener::bind(const std::string& path) {
  const sockaddr_un address = address_of(path);
  make_parent(path);
  Listener listener;
  listener.path_ = path;
  const std::string lock_path = path + ".lock";
  // Again where the file was removed by a daemon that ended between our open and our lock.
  for (;;) {
    listener.lock_fd_ = ::open(lock_path.c_str(), O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW, 0600);
    if (listener.lock_fd_ < 0) throw ListenError(errno_text("cannot make " + lock_path));
    if (::flock(listener.lock_fd_, LOCK_EX | LOCK_NB) != 0) throw_taken(path, listening_pid(address));
    struct stat held{}, there{};
    if (::fstat(listener.lock_fd_, &held) == 0 && ::stat(lock_path.c_str(), &there) == 0 && held.st_ino == there.st_ino)
      break;
    ::close(listener.lock_fd_);
  }
  struct stat status{};
  if (::lstat(path.c_str(), &status) == 0) {
    if (!S_ISSOCK(status.st_mode)) throw ListenError(path + " exists and is not a socket");
    if (const pid_t pid = listening_pid(address); pid != 0) throw_taken(path, pid);
    ::unlink(path.c_str());  // nobody listens: left behind by a crash
  }
  listener.fd_ = ::socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
  if (listener.fd_ < 0) throw ListenError(errno_text("socket"));
  if (::bind(listener.fd_, reinterpret_cast<const sockaddr*>(&address), sizeof address) != 0) {
    throw ListenError(errno_text("cannot make socket " + path));
  }
  listener.made_ = true;
  // Who may connect is the directory's affair.
  if (::chmod(path.c_str(), 0666) != 0 || ::listen(listener.fd_, kBacklog) != 0) throw ListenError(errno_text(path));
  return listener;
}

std::string listen_path(const std::string& configured) {
  if (!configured.empty()) return configured;
  const auto variable = [](const char* name) {
    const char* value = std::getenv(name);
    return std::string(value == nullptr ? "" : value);
  };
  if (const auto socket = variable("ELLM_SOCKET"); !socket.empty()) return socket;
  if (const auto runtime = variable("XDG_RUNTIME_DIR"); !runtime.empty()) return runtime + "/ellm/ellmd.sock";
  return "/run/ellm/ellmd.sock";
}

namespace {

std::vector<gid_t> more_groups_of(int fd) {
  std::vector<gid_t> groups(64);
  for (;;) {
    auto size = static_cast<socklen_t>(groups.size() * sizeof(gid_t));
    const bool fits = ::getsockopt(fd, SOL_SOCKET, SO_PEERGROUPS, groups.data(), &size) == 0;
    if (!fits && errno != ERANGE) return {};
    groups.resize(size / sizeof(gid_t));
    if (fits) return groups;
  }
}

}  // namespace

Peer peer_of(int fd, int64_t admin_gid) {
  ucred credentials{};
  socklen_t size = sizeof credentials;
  Peer peer;
  if (::getsockopt(fd, SOL_SOCKET, SO_PEERCRED, &credentials, &size) != 0) {
    peer.uid = UINT32_MAX;  // nobody in particular
    return peer;
  }
  peer.uid = credentials.uid;
  peer.pid = static_cast<uint32_t>(credentials.pid);
  peer.admin = peer.uid == 0 || peer.uid == ::geteuid();
  peer.groups = more_groups_of(fd);
  peer.groups.push_back(credentials.gid);
  if (admin_gid >= 0 && std::ranges::find(peer.groups, static_cast<gid_t>(admin_gid)) != peer.groups.end())
    peer.admin = true;
  return peer;
}

int64_t group_number(const std::string& name, const std::string& key) {
  if (name.empty()) return -1;
  std::vector<char> buffer(16384);
  struct group entry{};
  struct group* found = nullptr;
  while (::getgrnam_r(name.c_str(), &entry, buffer.data(), buffer.size(), &found) == ERANGE)
    buffer.resize(buffer.size() * 2);
  if (found == nullptr) throw ConfigError(key + " is '" + name + "'; there is no such group");
  return found->gr_gid;
}

}  // namespace ellm::daemon
