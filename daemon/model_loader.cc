// See model_loader.h.
#include "daemon/model_loader.h"

#include <algorithm>
#include <chrono>
#include <mutex>
#include <utility>

#include "client/places.h"
#include "daemon/disk_keep.h"
#include "daemon/log.h"
#include "daemon/model/experts.h"
#include "daemon/model/file_digest.h"
#include "daemon/model/key_means.h"
#include "daemon/runtime/memory.h"
#include "daemon/serve/disk_pages.h"
#include "shm/sealed_memory.h"

namespace ellm::daemon {
namespace {

constexpr size_t kMostDiskWarnings = 4;  // that `status` shows

/// What a step needs beside weights and KV: logits, and the activations of its rows.
uint64_t work_bytes(const model::ModelConfig& config, const serve::EngineLimits& limits) {
  const uint64_t logits = uint64_t{limits.max_running + limits.score_rows} * config.vocabulary;
  const uint64_t feed_forward = config.experts == 0 ? config.feed_forward : 0;
  const uint64_t row =
      7ull * config.embedding + 3ull * feed_forward + (2ull * config.heads + 2ull * config.kv_heads) * config.head_dim;
  const uint64_t experts = config.experts == 0 ? 0 : model::ExpertsPass::bytes(config, limits.step_tokens);
  return 4 * (logits + row * limits.step_tokens) + experts;
}

/// All but what is available.
MemoryNeeds needs_of(const format::Gguf& gguf, const Config& config, const serve::EngineLimits& limits) {
  const model::ModelConfig head = model::read_config(gguf);
  const shm::KvTypes types = *shm::find_kv_types(config.kv.type);  // checked with the configuration
  MemoryNeeds needs;
  needs.geometry = model::page_geometry(head, types);
  for (const format::Tensor& tensor : gguf.tensors()) needs.weight_bytes += tensor.data.size();
  needs.work_bytes = work_bytes(head, limits);
  needs.trained_context = head.context;
  return needs;
}

/// Takes those that are called so out of the descriptors that systemd kept.
std::map<std::string, int> take(std::map<std::string, int>& stored, const std::string& prefix) {
  std::map<std::string, int> taken;
  for (auto at = stored.lower_bound(prefix); at != stored.end() && at->first.starts_with(prefix);) {
    taken.insert(stored.extract(at++));
  }
  return taken;
}

}  // namespace

struct ModelLoader::Loading {
  const std::string &name, &path;
  std::vector<std::string> files;  // all parts
  // What is remembered of a file is remembered by its path; that of one that was handed over says nothing.
  bool kept_over_restarts;
  std::string identity = {};  // when they were opened
  MemoryNeeds needs = {};
  KvPlan plan = {};
};

struct ModelLoader::DiskWarnings {
  std::mutex mutex;
  std::vector<std::string> lines;
};

ModelLoader::ModelLoader(const Config& config, uint32_t threads, serve::Engine& engine,
                         std::map<std::string, int> stored)
    : config_(config), threads_(threads), engine_(engine), weight_keep_(config, take(stored, shm::kWeightsPrefix)),
      kv_keep_(config, std::move(stored)), disk_warnings_(std::make_shared<DiskWarnings>()),
      disk_(open_disk_tier(config, [said = disk_warnings_](const std::string& line) {
        log(Priority::warning, line);
        std::lock_guard lock(said->mutex);
        if (said->lines.size() < kMostDiskWarnings) said->lines.push_back(line);
      })) {}

std::vector<std::string> ModelLoader::disk_warnings() const {
  std::lock_guard lock(disk_warnings_->mutex);
  return disk_warnings_->lines;
}

std::shared_ptr<const LoadedModel> ModelLoader::load(const ModelFile& file, const ModelSource* source) {
  const auto start = std::chrono::steady_clock::now();
  auto gguf = source ? format::Gguf::open(source->files) : format::Gguf::open(file.path);
  Loading loading{file.name, file.path, gguf->part_paths(), source == nullptr};
  if (loading.kept_over_restarts) loading.identity = model::file_identity(loading.files);
  loading.needs = needs_of(*gguf, config_, engine_.limits());
  if (disk_ && loading.kept_over_restarts) {
    loading.needs.work_bytes += serve::DiskPages::memory_bytes(loading.needs.geometry, engine_.limits().max_running);
  }
  loading.plan = plan(loading);
  auto loaded = std::make_shared<LoadedModel>();
  loaded->name = file.name;
  loaded->context = loading.plan.context;
  load_weights(loading, std::move(gguf), *loaded);
  const serve::KvState kv = add_to_engine(loading, *loaded);
  for (const std::string& warning : loaded->warnings) log(Priority::warning, warning);
  const auto took = std::chrono::duration_cast<std::chrono::milliseconds>(std::chrono::steady_clock::now() - start);
  log(Priority::notice, "loaded " + file.name + " from " + file.path + " in " + std::to_string(took.count()) +
                            " ms: weights " + human_bytes(loaded->model->weight_bytes()) + ", KV " +
                            std::to_string(kv.tokens) + " tokens (" + config_.kv.type + "), context " +
                            std::to_string(loaded->context));
  return loaded;
}

// ---- memory ---------------------------------------------------------------------------------------------------------

/// Without what loaded models and the disk's index were promised and have not touched; what an earlier run holds of
/// this one is its own.
uint64_t ModelLoader::available_bytes(const Loading& loading) const {
  uint64_t available = runtime::available_memory_bytes();
  for (const serve::ModelRow& row : engine_.models()) available -= std::min(available, row.promised_bytes);
  if (disk_) available -= std::min(available, disk_->promised_bytes());
  if (!loading.kept_over_restarts) return available;
  return available + kv_keep_.held_bytes(loading.name) + weight_keep_.held_bytes(loading.name);
}

KvPlan ModelLoader::plan(Loading& loading) {
  loading.needs.available_bytes = available_bytes(loading);
  try {
    return plan_kv(loading.name, config_, loading.needs);
  } catch (const model::LoadError&) {
    if (!weight_keep_.forget_unclaimed(loading.name)) throw;
  }
  log(Priority::notice, "memory is short: the weights of an earlier run that nobody has asked for since are dropped");
  loading.needs.available_bytes = available_bytes(loading);
  return plan_kv(loading.name, config_, loading.needs);
}

// ---- weights --------------------------------------------------------------------------------------------------------

model::LoadOptions ModelLoader::weight_options(const Loading& loading) {
  const shm::KvType k_type = loading.needs.geometry.k_type;
  model::LoadOptions options;
  options.memory = *runtime::parse_memory_policy(config_.memory.policy);
  options.lock = config_.memory.lock != "off";
  options.require_lock = config_.memory.lock == "require";
  options.threads = threads_;
  options.context = config_.context;
  options.key_means = k_type == shm::KvType::int8 || k_type == shm::KvType::int4;
  if (!loading.kept_over_restarts) return options;
  options.state_directory = client::state_directory();
  // The digest is taken before the file is read for its weights: so it need not be read from the disk twice.
  if (weight_keep_.keeps())
    options.place = weight_keep_.place(loading.name, model::file_digest(loading.files, options.state_directory));
  return options;
}

void ModelLoader::load_weights(const Loading& loading, std::shared_ptr<const format::Gguf> gguf, LoadedModel& loaded) {
  const bool keeps = loading.kept_over_restarts;
  loaded.model = model::Model::load(std::move(gguf), weight_options(loading));
  if (keeps && model::file_identity(loading.files) != loading.identity) {
    weight_keep_.forget(loading.name);
    throw model::LoadError(loading.path + ": was changed while it was being loaded");
  }
  loaded.warnings = loaded.model->warnings();
  if (const auto& error = loaded.model->chat_template_error(); !error.empty()) {
    loaded.warnings.push_back(loading.path + ": " + error);
  }
  if (!keeps) return;
  const std::string line = weight_keep_.loaded(loading.name, loaded.model->weight_state(), loaded.warnings);
  if (!line.empty()) log(Priority::notice, line);
}

// ---- keys and values ------------------------------------------------------------------------------------------------

serve::KvSetup ModelLoader::kv_setup(const Loading& loading, LoadedModel& loaded) {
  const shm::PageGeometry& geometry = loading.needs.geometry;
  serve::KvSetup kv;
  kv.type = {geometry.k_type, geometry.v_type};
  kv.tokens = loading.plan.tokens;
  kv.least_tokens = loading.plan.least_tokens;
  kv.most_tokens = loading.plan.most_tokens;
  kv.context = loading.plan.context;
  kv.lock = config_.memory.lock != "off";
  kv.shares.pinned_percent = config_.kv.pinned_percent;
  kv.shares.present_ns = uint64_t{config_.kv.share_minutes} * 60 * 1'000'000'000;
  kv.on_damage = [name = loading.name](uint32_t pages) {
    log(Priority::warning, "model '" + name + "': " + std::to_string(pages) + " cached pages were damaged: dropped");
  };
  kv.fingerprint = "K mean " + std::to_string(model::key_means_digest(loaded.model->key_means()));
  if (!loading.kept_over_restarts) return kv;
  kv.disk = disk_;
  const uint64_t bytes = loading.plan.tokens / shm::kPageTokens * geometry.page_bytes();
  kv_keep_.prepare(kv, loading.name, loading.files, bytes, loaded.warnings);
  if (loaded.model->config().rope.long_factors) kv.fingerprint += " long RoPE";  // `context` changes what keys are
  return kv;
}

serve::KvState ModelLoader::add_to_engine(const Loading& loading, LoadedModel& loaded) {
  const serve::KvSetup kv = kv_setup(loading, loaded);
  const serve::KvState state = engine_.add_model(loading.name, loaded.model, kv);
  if (loading.kept_over_restarts) {
    if (const std::string line = kv_keep_.loaded(loading.name, kv, state); !line.empty()) log(Priority::notice, line);
  }
  if (config_.memory.lock == "off" || !loaded.model->locked() || kv_locked(loading.name)) return state;
  const std::string warning = loading.path +
                              ": the keys and values cannot be locked in memory: the limit is reached; "
                              "raise it (LimitMEMLOCK=, ulimit -l) or lower kv.memory";
  if (config_.memory.lock == "require") {
    engine_.remove_model(loading.name);
    throw model::LoadError(warning);
  }
  loaded.warnings.push_back(warning);
  return state;
}

bool ModelLoader::kv_locked(const std::string& name) const {
  for (const serve::ModelRow& row : engine_.models()) {
    if (row.name == name) return row.locked;
  }
  return false;
}

// ---- the end --------------------------------------------------------------------------------------------------------

void ModelLoader::unload(const std::string& name) {
  engine_.remove_model(name);
  forget_kept(name);
}

void ModelLoader::forget_kept(const std::string& name) {
  kv_keep_.forget(name);
  weight_keep_.forget(name);
}

}  // namespace ellm::daemon
