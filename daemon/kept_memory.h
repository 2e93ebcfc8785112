// Memory of models that outlives the daemon, one object for each model's name: under systemd in its file-descriptor
// store, else in /dev/shm. What is in it, and whether it may be used again, is the owner's affair (kv_keep.h,
// weight_keep.h). Used while a model is loaded or unloaded, by one thread at a time.
#pragma once
#include <cstdint>
#include <map>
#include <string>

namespace ellm::daemon {

class KeptMemory {
 public:
  enum class Place : uint8_t { nowhere, shared_memory, fd_store };

  /// Objects' names begin with `prefix`. `stored`: the descriptors that systemd kept, by name; they belong to this
  /// object now, and are let go where they are not wanted.
  KeptMemory(bool wanted, std::string prefix, std::map<std::string, int> stored);
  ~KeptMemory();
  KeptMemory(const KeptMemory&) = delete;

  Place place() const { return place_; }
  const std::string& state_directory() const { return state_directory_; }
  /// The name of a model's object, in the store and below /dev/shm.
  std::string name(const std::string& model) const;
  /// Memory that an earlier process's object of this model holds.
  uint64_t held_bytes(const std::string& model) const;
  /// Until nobody has a model's object in /dev/shm locked, for five seconds at most: a process that was killed holds
  /// what it had until the kernel has taken its memory down.
  void wait_for_the_dead(const std::string& model) const;
  /// The descriptor that systemd kept of it, the caller's from now on; -1: none.
  int claim(const std::string& model);
  /// Closes what nobody has claimed, but for this model's, and has systemd forget it. Returns whether there was any.
  bool forget_unclaimed(const std::string& but_of);
  /// Has systemd forget a model's, claimed or not. What stands in /dev/shm is the owner's to remove.
  void forget(const std::string& model);

 private:
  const Place place_;
  const std::string prefix_, state_directory_;
  std::map<std::string, int> stored_;
};

}  // namespace ellm::daemon
