// Loads a model into the engine: how much memory it gets, its weights, its pages of keys and values, and what of these
// an earlier process has left. Used by one pool thread at a time, and by the main thread before the loop runs.
#pragma once
#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "daemon/config.h"
#include "daemon/kv_keep.h"
#include "daemon/kv_plan.h"
#include "daemon/loaded_model.h"
#include "daemon/model_files.h"
#include "daemon/serve/disk_tier.h"
#include "daemon/serve/engine.h"
#include "daemon/weight_keep.h"

namespace ellm::daemon {

class ModelLoader {
 public:
  /// `stored`: descriptors that systemd kept (notify.h).
  ModelLoader(const Config& config, uint32_t threads, serve::Engine& engine, std::map<std::string, int> stored);

  /// `source`: its files, already open; null: they are opened. Throws what Model::load throws.
  std::shared_ptr<const LoadedModel> load(const ModelFile& file, const ModelSource* source = nullptr);
  /// Ends it, and what has been kept of it.
  void unload(const std::string& name);
  /// What has been kept of a model that is not loaded, by a daemon before this one.
  void forget_kept(const std::string& name);

  uint32_t threads() const { return threads_; }
  /// Prefixes on disk; null: there is no such tier. Any thread.
  const std::shared_ptr<serve::DiskTier>& disk() const { return disk_; }
  /// What it had to say. Any thread.
  std::vector<std::string> disk_warnings() const;

 private:
  struct Loading;  // what is known of one load, and grows
  struct DiskWarnings;

  uint64_t available_bytes(const Loading& loading) const;
  KvPlan plan(Loading& loading);
  model::LoadOptions weight_options(const Loading& loading);
  void load_weights(const Loading& loading, std::shared_ptr<const format::Gguf> gguf, LoadedModel& loaded);
  serve::KvSetup kv_setup(const Loading& loading, LoadedModel& loaded);
  serve::KvState add_to_engine(const Loading& loading, LoadedModel& loaded);
  bool kv_locked(const std::string& name) const;

  const Config& config_;
  const uint32_t threads_;
  serve::Engine& engine_;
  WeightKeep weight_keep_;
  KvKeep kv_keep_;
  const std::shared_ptr<DiskWarnings> disk_warnings_;  // the tier outlives this
  const std::shared_ptr<serve::DiskTier> disk_;        // null: there is none
};

}  // namespace ellm::daemon
