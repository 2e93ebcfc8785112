// See kv_keep.h.
#include "daemon/kv_keep.h"

#include <sys/statvfs.h>

#include <cerrno>
#include <cstring>
#include <system_error>
#include <utility>

#include "daemon/kv_plan.h"
#include "daemon/model/file_digest.h"
#include "daemon/model/forward.h"
#include "daemon/notify.h"
#include "shm/segment.h"

namespace ellm::daemon {
namespace {

using Place = KeptMemory::Place;

/// Why a segment in /dev/shm cannot be had; empty: it can.
std::string obstacle(const std::string& name, uint64_t bytes, uint64_t held) {
  struct statvfs status{};
  if (::statvfs("/dev/shm", &status) != 0) return std::string("/dev/shm: ") + std::strerror(errno);
  const uint64_t room = uint64_t{status.f_bavail} * status.f_frsize + held;
  if (room < bytes) return "/dev/shm has room for " + human_bytes(room) + ", it may take " + human_bytes(bytes);
  try {
    shm::Segment::open(name);
    return "";
  } catch (const std::system_error& e) {
    return e.what();
  }
}

}  // namespace

KvKeep::KvKeep(const Config& config, std::map<std::string, int> stored)
    : memory_(config.kv.keep != "off", shm::kSegmentPrefix, std::move(stored)) {}

void KvKeep::prepare(serve::KvSetup& setup, const std::string& model, const std::vector<std::string>& files,
                     uint64_t bytes, std::vector<std::string>& warnings) {
  if (memory_.place() == Place::nowhere && !setup.disk) return;
  setup.fingerprint += " files " + model::file_digest(files, memory_.state_directory()) + " K:V " +
                       shm::name_of(setup.type.k) + ":" + shm::name_of(setup.type.v) + " numerics " +
                       std::to_string(model::kNumericsVersion);
  if (memory_.place() == Place::nowhere) return;
  if (memory_.place() == Place::shared_memory) {
    const std::string name = memory_.name(model);
    memory_.wait_for_the_dead(model);
    if (const std::string why = obstacle(name, bytes, held_bytes(model)); !why.empty()) {
      warnings.push_back("model '" + model + "': cached prefixes will end with the daemon: " + why);
      return;
    }
    setup.segment_name = name;
  } else {
    setup.segment_fd = memory_.claim(model);
  }
}

std::string KvKeep::loaded(const std::string& model, const serve::KvSetup& setup, const serve::KvState& state) {
  if (memory_.place() == Place::fd_store && !state.taken_over) {
    if (setup.segment_fd >= 0) memory_.forget(model);
    store_descriptor(memory_.name(model), state.fd);
  }
  if (state.taken_over)
    return "model '" + model + "': " + std::to_string(state.kept_pages) + " pages of prefixes are still there";
  if (!state.refused.empty())
    return "model '" + model + "': the prefixes of an earlier run are dropped: " + state.refused;
  return "";
}

void KvKeep::forget(const std::string& model) {
  memory_.forget(model);
  if (memory_.place() == Place::shared_memory) shm::Segment::remove(memory_.name(model));
}

}  // namespace ellm::daemon
