// See weight_memory.h.
#include "daemon/model/weight_memory.h"

#include <sys/mman.h>

#include <cerrno>
#include <cstring>
#include <system_error>
#include <utility>

#include "daemon/model/threads.h"

namespace ellm::model {
namespace {

shm::SealedOptions options_of(const WeightPlace& place, size_t bytes, size_t pieces) {
  return {.name = place.name, .fd = place.fd, .fingerprint = place.fingerprint, .bytes = bytes, .checks = pieces};
}

std::string no_memory(int error) {
  if (error == ENOSPC) return "/dev/shm is full";
  return std::string("no memory for them: ") + std::strerror(error);
}

/// Whether this kernel makes the memory that is wanted, tried with the first of it. Returns why not.
std::string try_memory(shm::SealedMemory& object, bool in_small_pages) {
  if (const int error = object.populate(0, 1)) return no_memory(error);
  if (object.no_huge_pages() && !in_small_pages)
    return "this kernel has no huge pages for shared memory (Linux 6.1 has, or shmem_enabled in "
           "/sys/kernel/mm/transparent_hugepage), and without them decoding is slower; memory.keep = \"always\" keeps them";
  return "";
}

}  // namespace

std::optional<WeightMemory> WeightMemory::find(const WeightPlace& place, size_t bytes, size_t pieces, uint32_t threads,
                                               WeightState& state) {
  if (!place.keep || bytes == 0) return std::nullopt;
  WeightMemory memory;
  try {
    if (auto object = shm::SealedMemory::find(options_of(place, bytes, pieces), state.refused))
      memory.object_.emplace(std::move(*object));
  } catch (const std::system_error& e) {
    state.problem = e.what();
  }
  if (!memory.object_) return std::nullopt;
  // A page fault for each huge page, here and not in the first step. Where it fails they come in that step.
  constexpr size_t kSlab = size_t{64} << 20;
  on_threads(threads, (bytes + kSlab - 1) / kSlab, [&](uint64_t i) {
    ::madvise(memory.data() + i * kSlab, std::min(kSlab, bytes - i * kSlab), MADV_POPULATE_READ);
  });
  state.kept = state.taken_over = true;
  state.vouched = memory.object_->immutable();
  state.fd = memory.object_->fd();
  return memory;
}

WeightMemory WeightMemory::make(const WeightPlace& place, size_t bytes, size_t pieces, runtime::MemoryPolicy policy,
                                WeightState& state) {
  WeightMemory memory;
  if (place.keep && bytes != 0 && state.problem.empty()) {
    try {
      memory.object_.emplace(shm::SealedMemory::make(options_of(place, bytes, pieces)));
      runtime::place_memory(memory.data(), bytes, policy);
      state.problem = try_memory(*memory.object_, place.in_small_pages);
    } catch (const std::system_error& e) {
      state.problem = e.what();
    }
    if (state.problem.empty()) return memory;
    memory.object_.reset();  // its memory first
  }
  memory.region_ = runtime::Region::map(bytes, policy);
  return memory;
}

int WeightMemory::populate(size_t first, size_t end) { return object_ ? object_->populate(first, end) : 0; }

void WeightMemory::become_private(int error, size_t bytes, runtime::MemoryPolicy policy, WeightState& state) {
  state.problem = no_memory(error);
  object_.reset();  // its memory first
  region_ = runtime::Region::map(bytes, policy);
}

void WeightMemory::seal(WeightState& state) {
  if (!object_) return;
  try {
    object_->seal();
    state.kept = true;
    state.fd = object_->fd();
  } catch (const std::system_error& e) {
    state.problem = e.what();
  }
}

}  // namespace ellm::model
