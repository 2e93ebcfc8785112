// The memory in which a model's repacked weights stand: private to this process, or an object that a later process
// finds again (shm/sealed_memory.h). One thread while it is loaded, then read-only; any thread.
#pragma once
#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>

#include "daemon/runtime/memory.h"
#include "shm/sealed_memory.h"

namespace ellm::model {

/// Where a model's weights are to stand.
struct WeightPlace {
  bool keep = false;             // where a later process finds them
  bool in_small_pages = false;   // even where there are no huge ones for them; else they are private then
  std::string name = {};         // of the object in /dev/shm; empty: a memfd
  int fd = -1;                   // the memfd that an earlier process left; the memory's from then on
  std::string fingerprint = {};  // of the files that they are made of
};

/// What became of it.
struct WeightState {
  bool kept = false;        // a later process will find them
  bool taken_over = false;  // an earlier process has made them
  bool vouched = true;      // nobody can have changed them since; else intact() has to be asked
  int fd = -1;              // of a memfd that is kept
  std::string refused;      // why those of an earlier process were dropped, if they were
  std::string problem;      // why they are not kept although they ought to be
};

class WeightMemory {
 public:
  /// What an earlier process left of exactly this; absent where there is nothing, which `state` explains. Mapped, and
  /// where the kernel lets us present, by `threads`.
  static std::optional<WeightMemory> find(const WeightPlace& place, size_t bytes, size_t pieces, uint32_t threads,
                                          WeightState& state);
  /// Fresh memory; what cannot be kept is private, and `state` says why. Throws std::bad_alloc.
  static WeightMemory make(const WeightPlace& place, size_t bytes, size_t pieces, runtime::MemoryPolicy policy,
                           WeightState& state);
  /// Has memory stand behind bytes [first, end) and, with the last of them, behind checks(): before anything is written
  /// there, by whoever is about to, so that what the kernel has cleared is still in his cache. Returns an errno or 0.
  /// Any thread.
  int populate(size_t first, size_t end);
  /// There was not enough: fresh private memory in its place. Throws std::bad_alloc.
  void become_private(int error, size_t bytes, runtime::MemoryPolicy policy, WeightState& state);

  std::byte* data() const { return object_ ? object_->data() : region_.data(); }
  /// A checksum for each piece, to be filled in; empty where nobody will want them: private memory, or sealed by the
  /// kernel.
  std::span<uint64_t> checks() const {
    return object_ && !object_->immutable() ? object_->checks() : std::span<uint64_t>();
  }
  /// They are complete.
  void seal(WeightState& state);

 private:
  std::optional<shm::SealedMemory> object_;
  runtime::Region region_;
};

}  // namespace ellm::model
