// An open file of this process, owned; and those that a client has handed over, with what they are charged for.
#pragma once
#include <unistd.h>

#include <utility>
#include <vector>

#include "daemon/accounts.h"

namespace ellm::daemon {

class Descriptor {
 public:
  Descriptor() = default;
  explicit Descriptor(int fd) : fd_(fd) {}
  Descriptor(Descriptor&& other) noexcept : fd_(std::exchange(other.fd_, -1)) {}
  Descriptor& operator=(Descriptor&& other) noexcept {
    std::swap(fd_, other.fd_);
    return *this;
  }
  ~Descriptor() {
    if (fd_ >= 0) ::close(fd_);
  }
  int get() const { return fd_; }
  explicit operator bool() const { return fd_ >= 0; }

 private:
  int fd_ = -1;
};

/// What came with a frame. Closed, and no longer charged, with the last who holds it.
struct HandedOver {
  std::vector<Descriptor> descriptors;
  Charge charge;
  bool lost = false;  // more came than this process could take
};

}  // namespace ellm::daemon
