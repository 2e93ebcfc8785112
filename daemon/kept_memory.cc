// See kept_memory.h.
#include "daemon/kept_memory.h"

#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <utility>

#include "client/places.h"
#include "daemon/model/file_digest.h"
#include "daemon/notify.h"

namespace ellm::daemon {
namespace {

constexpr int kLockAttempts = 500;
constexpr unsigned kLockPauseMs = 10;

void let_go(const std::string& name, int fd) {
  forget_descriptor(name);
  ::close(fd);
}

}  // namespace

KeptMemory::KeptMemory(bool wanted, std::string prefix, std::map<std::string, int> stored)
    : place_(!wanted            ? Place::nowhere
             : run_by_systemd() ? Place::fd_store
                                : Place::shared_memory),
      prefix_(std::move(prefix)), state_directory_(client::state_directory()), stored_(std::move(stored)) {
  if (place_ == Place::fd_store) return;
  for (const auto& [name, fd] : std::exchange(stored_, {})) let_go(name, fd);
}

KeptMemory::~KeptMemory() {
  for (const auto& [name, fd] : stored_) ::close(fd);  // systemd has them
}

/// Another state directory is another daemon's.
std::string KeptMemory::name(const std::string& model) const {
  return prefix_ + std::to_string(::geteuid()) + "." + model::text_digest(state_directory_ + '\n' + model);
}

uint64_t KeptMemory::held_bytes(const std::string& model) const {
  const std::string object = name(model);
  struct stat status{};
  const auto found = stored_.find(object);
  const bool there = found != stored_.end()
                         ? ::fstat(found->second, &status) == 0
                         : place_ == Place::shared_memory && ::stat(("/dev/shm/" + object).c_str(), &status) == 0;
  return there ? static_cast<uint64_t>(status.st_blocks) * 512 : 0;
}

void KeptMemory::wait_for_the_dead(const std::string& model) const {
  const std::string path = "/dev/shm/" + name(model);
  const int fd = ::open(path.c_str(), O_RDONLY | O_NOFOLLOW | O_CLOEXEC | O_NONBLOCK);
  if (fd < 0) return;
  for (int i = 0; ::flock(fd, LOCK_EX | LOCK_NB) != 0 && i < kLockAttempts; ++i) ::usleep(kLockPauseMs * 1000);
  ::close(fd);
}

int KeptMemory::claim(const std::string& model) {
  const auto found = stored_.find(name(model));
  if (found == stored_.end()) return -1;
  const int fd = found->second;
  stored_.erase(found);
  return fd;
}

bool KeptMemory::forget_unclaimed(const std::string& but_of) {
  const size_t dropped = std::erase_if(stored_, [own = name(but_of)](const auto& one) {
    if (one.first == own) return false;
    let_go(one.first, one.second);
    return true;
  });
  return dropped != 0;
}

void KeptMemory::forget(const std::string& model) {
  if (place_ != Place::fd_store) return;
  if (const int fd = claim(model); fd >= 0) ::close(fd);
  forget_descriptor(name(model));
}

}  // namespace ellm::daemon
