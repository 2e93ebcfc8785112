// See weight_keep.h.
#include "daemon/weight_keep.h"

#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <utility>

#include "client/places.h"
#include "daemon/model/file_digest.h"
#include "daemon/notify.h"
#include "shm/sealed_memory.h"

namespace ellm::daemon {
namespace {

constexpr int kLockAttempts = 50;
constexpr unsigned kLockPauseMs = 100;

/// A process that was killed holds what it had until the kernel has taken its memory down, which may take a moment.
void wait_for_the_dead(const std::string& path) {
  const int fd = ::open(path.c_str(), O_RDONLY | O_NOFOLLOW | O_CLOEXEC | O_NONBLOCK);
  if (fd < 0) return;
  for (int i = 0; ::flock(fd, LOCK_EX | LOCK_NB) != 0 && i < kLockAttempts; ++i) ::usleep(kLockPauseMs * 1000);
  ::close(fd);
}

}  // namespace

WeightKeep::WeightKeep(const Config& config, std::map<std::string, int> stored)
    : place_(config.memory.keep == "off" ? Place::nowhere
             : run_by_systemd()          ? Place::fd_store
                                         : Place::shared_memory),
      in_small_pages_(config.memory.keep == "always"),
      policy_(config.memory.policy),
      state_directory_(client::state_directory()),
      stored_(std::move(stored)) {
  if (place_ == Place::fd_store) return;
  for (const auto& [name, fd] : std::exchange(stored_, {})) {
    forget_descriptor(name);
    ::close(fd);
  }
}

WeightKeep::~WeightKeep() {
  for (const auto& [name, fd] : stored_) ::close(fd);   // systemd has them
}

/// Another state directory is another daemon's.
std::string WeightKeep::object_name(const std::string& model) const {
  return shm::kWeightsPrefix + std::to_string(::geteuid()) + "." + model::text_digest(state_directory_ + '\n' + model);
}

uint64_t WeightKeep::held_bytes(const std::string& model) const {
  const std::string name = object_name(model);
  struct stat status {};
  const auto found = stored_.find(name);
  const bool there = found != stored_.end() ? ::fstat(found->second, &status) == 0
                                            : place_ == Place::shared_memory &&
                                                  ::stat(("/dev/shm/" + name).c_str(), &status) == 0;
  return there ? static_cast<uint64_t>(status.st_blocks) * 512 : 0;
}

model::WeightPlace WeightKeep::place(const std::string& model, const std::string& digest) {
  model::WeightPlace place;
  if (place_ == Place::nowhere) return place;
  const std::string name = object_name(model);
  place.keep = true;
  place.in_small_pages = in_small_pages_;
  place.fingerprint = "files " + digest + " memory " + policy_;
  if (place_ == Place::shared_memory) {
    place.name = name;
    wait_for_the_dead("/dev/shm/" + name);
  } else if (const auto found = stored_.find(name); found != stored_.end()) {
    place.fd = found->second;
    stored_.erase(found);
  }
  return place;
}

std::string WeightKeep::loaded(const std::string& model, const model::WeightState& state, std::vector<std::string>& warnings) {
  const std::string name = object_name(model);
  if (place_ == Place::fd_store && !state.taken_over) {
    if (!state.refused.empty()) forget_descriptor(name);
    if (state.kept) store_descriptor(name, state.fd);
  }
  if (!state.problem.empty())
    warnings.push_back("model '" + model + "': a restart will load its weights anew: " + state.problem);
  if (state.taken_over) return "model '" + model + "': its weights are still there";
  if (!state.refused.empty()) return "model '" + model + "': the weights of an earlier run are dropped: " + state.refused;
  return "";
}

bool WeightKeep::forget_unclaimed(const std::string& but_of) {
  const size_t dropped = std::erase_if(stored_, [own = object_name(but_of)](const auto& one) {
    if (one.first == own) return false;
    forget_descriptor(one.first);
    ::close(one.second);
    return true;
  });
  return dropped != 0;
}

void WeightKeep::forget(const std::string& model) {
  const std::string name = object_name(model);
  if (const auto found = stored_.find(name); found != stored_.end()) {
    ::close(found->second);
    stored_.erase(found);
  }
  if (place_ == Place::fd_store) forget_descriptor(name);
  if (place_ == Place::shared_memory) shm::SealedMemory::remove(name);
}

}  // namespace ellm::daemon
