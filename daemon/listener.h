// The socket that clients connect to: made here, or passed in by systemd. A socket file that nobody listens on is
// replaced, a live one is an error. One owner.
#pragma once
#include <optional>
#include <stdexcept>
#include <string>
#include <vector>

#include "daemon/peer.h"

namespace ellm::daemon {

/// "another ellmd (pid N) listens on PATH", "PATH: …"
class ListenError : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

class Listener {
 public:
  /// The socket that systemd passed in, else `path`. Throws ListenError.
  static Listener open(const std::string& path, const std::vector<int>& passed);
  /// The socket for metrics that systemd passed in, TCP too; else `path`; absent where both are empty. Throws
  /// ListenError.
  static std::optional<Listener> open_metrics(const std::string& path, const std::vector<int>& passed);
  Listener(Listener&& other) noexcept;
  Listener& operator=(Listener&&) = delete;
  /// Stops listening and removes the socket file, if it was made here.
  ~Listener();
  void close();

  int fd() const { return fd_; }
  const std::string& path() const { return path_; }

 private:
  Listener() = default;
  static Listener bind(const std::string& path);
  int fd_ = -1, lock_fd_ = -1;
  std::string path_;
  bool made_ = false;
};

/// The configured path, else where clients look for it (client/places.h).
std::string listen_path(const std::string& configured);

/// The other end of a connected socket. `admin_gid` -1: no group.
Peer peer_of(int fd, int64_t admin_gid);
/// The number of a group; throws ConfigError if there is none of this name.
int64_t group_number(const std::string& name, const std::string& key = "admin_group");

}  // namespace ellm::daemon
