// The KV segments of models as memory that outlives the daemon; a fingerprint says of which bytes. Used while a model
// is loaded or unloaded, by one thread at a time.
#pragma once
#include <map>
#include <string>
#include <vector>

#include "daemon/config.h"
#include "daemon/kept_memory.h"
#include "daemon/serve/engine.h"

namespace ellm::daemon {

class KvKeep {
 public:
  /// `stored`: the descriptors that systemd kept, by name; they belong to this object now.
  KvKeep(const Config& config, std::map<std::string, int> stored);

  /// Memory that an earlier process's segment of this model holds.
  uint64_t held_bytes(const std::string& model) const { return memory_.held_bytes(model); }
  /// Says where the segment of a model that is about to be loaded stands, and adds to its fingerprint; `bytes`: what it
  /// may grow to. Reads the model's files where they have changed since the last time (their digest is remembered in
  /// the state directory). Where nothing can be kept, a warning says why.
  void prepare(serve::KvSetup& setup, const std::string& model, const std::vector<std::string>& files, uint64_t bytes,
               std::vector<std::string>& warnings);
  /// It is loaded: has systemd keep a new segment's descriptor. Returns what is worth a line in the log, or nothing.
  std::string loaded(const std::string& model, const serve::KvSetup& setup, const serve::KvState& state);
  /// It was unloaded: its memory goes.
  void forget(const std::string& model);

 private:
  KeptMemory memory_;
};

}  // namespace ellm::daemon
