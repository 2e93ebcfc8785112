// See kv_keep.h.
#include "daemon/kv_keep.h"

#include <sys/stat.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <system_error>
#include <utility>

#include "client/places.h"
#include "daemon/kv_plan.h"
#include "daemon/model/file_digest.h"
#include "daemon/model/forward.h"
#include "daemon/notify.h"
#include "shm/segment.h"

namespace ellm::daemon {
namespace {

constexpr int kLockAttempts = 50;
constexpr unsigned kLockPauseMs = 100;

/// Why a segment in /dev/shm cannot be had; empty: it can. A process that was killed lets go when the kernel has taken its
/// memory down, which may take a moment.
std::string obstacle(const std::string& name, uint64_t bytes, uint64_t held) {
  struct statvfs status {};
  if (::statvfs("/dev/shm", &status) != 0) return std::string("/dev/shm: ") + std::strerror(errno);
  const uint64_t room = uint64_t{status.f_bavail} * status.f_frsize + held;
  if (room < bytes) return "/dev/shm has room for " + human_bytes(room) + ", it may take " + human_bytes(bytes);
  for (int attempt = 0;; ++attempt) {
    try {
      shm::Segment::open(name);
      return "";
    } catch (const std::system_error& e) {
      if (e.code().value() != EBUSY || attempt == kLockAttempts) return e.what();
    }
    ::usleep(kLockPauseMs * 1000);
  }
}

}  // namespace

KvKeep::KvKeep(const Config& config, std::map<std::string, int> stored)
    : place_(config.kv.keep == "off" ? Place::nowhere
             : run_by_systemd()      ? Place::fd_store
                                     : Place::shared_memory),
      state_directory_(client::state_directory()),
      stored_(std::move(stored)) {
  if (place_ == Place::fd_store) return;
  for (const auto& [name, fd] : std::exchange(stored_, {})) {
    forget_descriptor(name);
    ::close(fd);
  }
}

KvKeep::~KvKeep() {
  for (const auto& [name, fd] : stored_) ::close(fd);   // systemd has them
}

/// Another state directory is another daemon's.
std::string KvKeep::segment_name(const std::string& model) const {
  return shm::kSegmentPrefix + std::to_string(::geteuid()) + "." + model::text_digest(state_directory_ + '\n' + model);
}

uint64_t KvKeep::held_bytes(const std::string& model) const {
  const std::string name = segment_name(model);
  struct stat status {};
  const auto found = stored_.find(name);
  const bool there = found != stored_.end() ? ::fstat(found->second, &status) == 0
                                            : place_ == Place::shared_memory &&
                                                  ::stat(("/dev/shm/" + name).c_str(), &status) == 0;
  return there ? static_cast<uint64_t>(status.st_blocks) * 512 : 0;
}

void KvKeep::prepare(serve::KvSetup& setup, const std::string& model, const std::vector<std::string>& files,
                     uint64_t bytes, std::vector<std::string>& warnings) {
  if (place_ == Place::nowhere && !setup.disk) return;
  setup.fingerprint += " files " + model::file_digest(files, state_directory_) + " K:V " + shm::name_of(setup.type.k) + ":" +
                       shm::name_of(setup.type.v) + " numerics " + std::to_string(model::kNumericsVersion);
  if (place_ == Place::nowhere) return;
  const std::string name = segment_name(model);
  if (place_ == Place::shared_memory) {
    if (const std::string why = obstacle(name, bytes, held_bytes(model)); !why.empty()) {
      warnings.push_back("model '" + model + "': cached prefixes will end with the daemon: " + why);
      return;
    }
    setup.segment_name = name;
  } else if (const auto found = stored_.find(name); found != stored_.end()) {
    setup.segment_fd = found->second;
    stored_.erase(found);
  }
}

std::string KvKeep::loaded(const std::string& model, const serve::KvSetup& setup, const serve::KvState& state) {
  const std::string name = segment_name(model);
  if (place_ == Place::fd_store && !state.taken_over) {
    if (setup.segment_fd >= 0) forget_descriptor(name);
    store_descriptor(name, state.fd);
  }
  if (state.taken_over)
    return "model '" + model + "': " + std::to_string(state.kept_pages) + " pages of prefixes are still there";
  if (!state.refused.empty())
    return "model '" + model + "': the prefixes of an earlier run are dropped: " + state.refused;
  return "";
}

void KvKeep::forget(const std::string& model) {
  const std::string name = segment_name(model);
  if (place_ == Place::fd_store) forget_descriptor(name);
  if (place_ == Place::shared_memory) shm::Segment::remove(name);
}

}  // namespace ellm::daemon
