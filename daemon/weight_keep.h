// The repacked weights of models as memory that outlives the daemon; a fingerprint says of which bytes. Used while a
// model is loaded or unloaded, by one thread at a time.
#pragma once
#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "daemon/config.h"
#include "daemon/kept_memory.h"
#include "daemon/model/weight_memory.h"

namespace ellm::daemon {

class WeightKeep {
 public:
  /// `stored`: the descriptors that systemd kept, by name; they belong to this object now.
  WeightKeep(const Config& config, std::map<std::string, int> stored);

  /// Memory that an earlier process's weights of this model hold.
  uint64_t held_bytes(const std::string& model) const { return memory_.held_bytes(model); }
  /// Of a model that is about to be loaded from files with this digest.
  model::WeightPlace place(const std::string& model, const std::string& digest);
  /// It is loaded: has systemd keep what is new. Returns what is worth a line in the log, or nothing.
  std::string loaded(const std::string& model, const model::WeightState& state, std::vector<std::string>& warnings);
  /// Frees what nobody has asked for since the daemon began, but for this model's: memory is short. Returns whether
  /// there was any. (In systemd's store; an object in /dev/shm may be another daemon's of this user.)
  bool forget_unclaimed(const std::string& but_of) { return memory_.forget_unclaimed(but_of); }
  /// It was unloaded, or removed: the memory goes.
  void forget(const std::string& model);
  bool keeps() const { return memory_.place() != KeptMemory::Place::nowhere; }

 private:
  KeptMemory memory_;
  const bool in_small_pages_;
  const std::string policy_;
};

}  // namespace ellm::daemon
