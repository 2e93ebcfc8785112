// See registry.h.
#include "daemon/registry.h"

#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <filesystem>
#include <mutex>
#include <utility>

#include "client/places.h"
#include "client/utf8.h"
#include "daemon/disk_keep.h"
#include "daemon/format/inspect.h"
#include "daemon/kv_keep.h"
#include "daemon/kv_plan.h"
#include "daemon/log.h"
#include "daemon/model/experts.h"
#include "daemon/model/file_digest.h"
#include "daemon/model/key_means.h"
#include "daemon/model_store.h"
#include "daemon/runtime/memory.h"
#include "daemon/weight_keep.h"
#include "shm/sealed_memory.h"

namespace ellm::daemon {
namespace {

using client::ErrorCode;
using client::ModelInfo;

constexpr uint32_t kBusyRetryMs = 500;
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

/// Takes those that are called so out of the descriptors that systemd kept.
std::map<std::string, int> take(std::map<std::string, int>& stored, const std::string& prefix) {
  std::map<std::string, int> taken;
  for (auto at = stored.lower_bound(prefix); at != stored.end() && at->first.starts_with(prefix);) {
    taken.insert(stored.extract(at++));
  }
  return taken;
}

void describe_config(ModelInfo& info, const model::ModelConfig& config) {
  info.architecture = config.architecture;
  info.context = config.context;
  info.size_label = config.size_label;
}

}  // namespace

/// Used by one pool thread at a time, and by the main thread before the loop runs; `cache` by any.
struct Registry::Loader {
  Loader(const Config& c, uint32_t t, serve::Engine& e, std::map<std::string, int> stored)
      : config(c), threads(t), engine(e), weight_keep(c, take(stored, shm::kWeightsPrefix)),
        keep(c, std::move(stored)) {
    disk = open_disk_tier(c, [said = disk_warnings](const std::string& line) {
      log(Priority::warning, line);
      std::lock_guard lock(said->mutex);
      if (said->lines.size() < kMostDiskWarnings) said->lines.push_back(line);
    });
  }

  const Config& config;
  uint32_t threads;
  serve::Engine& engine;
  WeightKeep weight_keep;
  KvKeep keep;
  std::mutex mutex;
  std::map<std::string, std::pair<std::filesystem::file_time_type, ModelInfo>> cache;  // by path
  struct DiskWarnings {
    std::mutex mutex;
    std::vector<std::string> lines;
  };
  const std::shared_ptr<DiskWarnings> disk_warnings = std::make_shared<DiskWarnings>();  // the tier outlives this
  std::shared_ptr<serve::DiskTier> disk;                                                 // null: there is none

  std::shared_ptr<const LoadedModel> load(const ModelFile& file, const ModelSource* source = nullptr);
  std::vector<ModelInfo> describe(const std::vector<ModelFile>& files);
  ModelInfo read_info(const ModelFile& file);
  /// Ends it, and what it has kept.
  void forget(const std::string& name);
  bool kv_locked(const std::string& name) const;
  uint64_t available_bytes() const;
};

/// Without what loaded models were promised and have not touched.
uint64_t Registry::Loader::available_bytes() const {
  uint64_t available = runtime::available_memory_bytes();
  for (const serve::ModelRow& row : engine.models()) available -= std::min(available, row.promised_bytes);
  return available;
}

std::shared_ptr<const LoadedModel> Registry::Loader::load(const ModelFile& file, const ModelSource* source) {
  const auto start = std::chrono::steady_clock::now();
  auto gguf = source ? format::Gguf::open(source->files) : format::Gguf::open(file.path);
  const std::vector<std::string> files = gguf->part_paths();
  // What is remembered of a file is remembered by its path; that of one that was handed over says nothing.
  const bool kept_over_restarts = source == nullptr;
  const std::string identity = kept_over_restarts ? model::file_identity(files) : "";
  MemoryNeeds needs;
  {
    const model::ModelConfig head = model::read_config(*gguf);
    const shm::KvTypes types = *shm::find_kv_types(config.kv.type);  // checked with the configuration
    needs.geometry = model::page_geometry(head, types);
    for (const format::Tensor& tensor : gguf->tensors()) needs.weight_bytes += tensor.data.size();
    needs.work_bytes = work_bytes(head, engine.limits());
    needs.trained_context = head.context;
  }
  const auto make_plan = [&] {
    needs.available_bytes = available_bytes();
    if (kept_over_restarts)  // what an earlier run holds is this one's
      needs.available_bytes += keep.held_bytes(file.name) + weight_keep.held_bytes(file.name);
    return plan_kv(file.name, config, needs);
  };
  KvPlan plan;
  try {
    plan = make_plan();
  } catch (const model::LoadError&) {
    if (!weight_keep.forget_unclaimed(file.name)) throw;
    log(Priority::notice, "memory is short: the weights of an earlier run that nobody has asked for since are dropped");
    plan = make_plan();
  }
  serve::KvSetup kv;
  kv.type = {needs.geometry.k_type, needs.geometry.v_type};
  kv.tokens = plan.tokens;
  kv.least_tokens = plan.least_tokens;
  kv.most_tokens = plan.most_tokens;
  kv.context = plan.context;
  kv.lock = config.memory.lock != "off";
  kv.shares.pinned_percent = config.kv.pinned_percent;
  kv.shares.present_ns = uint64_t{config.kv.share_minutes} * 60 * 1'000'000'000;
  kv.on_damage = [name = file.name](uint32_t pages) {
    log(Priority::warning, "model '" + name + "': " + std::to_string(pages) + " cached pages were damaged: dropped");
  };
  model::LoadOptions options;
  options.memory = *runtime::parse_memory_policy(config.memory.policy);
  options.lock = config.memory.lock != "off";
  options.require_lock = config.memory.lock == "require";
  options.threads = threads;
  options.context = config.context;
  options.key_means = needs.geometry.k_type == shm::KvType::int8 || needs.geometry.k_type == shm::KvType::int4;
  if (kept_over_restarts) {
    options.state_directory = client::state_directory();
    // The digest is taken before the file is read for its weights: so it need not be read from the disk twice.
    if (weight_keep.keeps())
      options.place = weight_keep.place(file.name, model::file_digest(files, options.state_directory));
  }
  auto loaded = std::make_shared<LoadedModel>();
  loaded->name = file.name;
  loaded->model = model::Model::load(std::move(gguf), options);
  if (kept_over_restarts && model::file_identity(files) != identity) {
    weight_keep.forget(file.name);
    throw model::LoadError(file.path + ": was changed while it was being loaded");
  }
  loaded->context = plan.context;
  loaded->warnings = loaded->model->warnings();
  if (const auto& error = loaded->model->chat_template_error(); !error.empty()) {
    loaded->warnings.push_back(file.path + ": " + error);
  }
  kv.fingerprint = "K mean " + std::to_string(model::key_means_digest(loaded->model->key_means()));
  if (kept_over_restarts) {
    const std::string line = weight_keep.loaded(file.name, loaded->model->weight_state(), loaded->warnings);
    if (!line.empty()) log(Priority::notice, line);
    kv.disk = disk;
    keep.prepare(kv, file.name, files, plan.tokens / shm::kPageTokens * needs.geometry.page_bytes(), loaded->warnings);
    if (loaded->model->config().rope.long_factors) kv.fingerprint += " long RoPE";  // `context` changes what keys are
  }
  const serve::KvState kept = engine.add_model(file.name, loaded->model, kv);
  if (kept_over_restarts) {
    if (const std::string line = keep.loaded(file.name, kv, kept); !line.empty()) log(Priority::notice, line);
  }
  if (options.lock && loaded->model->locked() && !kv_locked(file.name)) {
    const std::string warning = file.path +
                                ": the keys and values cannot be locked in memory: the limit is reached; "
                                "raise it (LimitMEMLOCK=, ulimit -l) or lower kv.memory";
    if (options.require_lock) {
      engine.remove_model(file.name);
      throw model::LoadError(warning);
    }
    loaded->warnings.push_back(warning);
  }
  for (const std::string& warning : loaded->warnings) log(Priority::warning, warning);
  const auto took = std::chrono::duration_cast<std::chrono::milliseconds>(std::chrono::steady_clock::now() - start);
  log(Priority::notice, "loaded " + file.name + " from " + file.path + " in " + std::to_string(took.count()) +
                            " ms: weights " + human_bytes(loaded->model->weight_bytes()) + ", KV " +
                            std::to_string(kept.tokens) + " tokens (" + config.kv.type + "), context " +
                            std::to_string(plan.context));
  return loaded;
}

void Registry::Loader::forget(const std::string& name) {
  engine.remove_model(name);
  keep.forget(name);
  weight_keep.forget(name);
}

bool Registry::Loader::kv_locked(const std::string& name) const {
  for (const serve::ModelRow& row : engine.models()) {
    if (row.name == name) return row.locked;
  }
  return false;
}

ModelInfo Registry::Loader::read_info(const ModelFile& file) {
  ModelInfo info;
  info.name = file.name;
  info.path = file.path;
  const auto gguf = format::Gguf::open(file.path);
  info.file_bytes = gguf->file_bytes();
  info.parameters = format::parameter_count(*gguf);
  info.weight_types = format::describe_weight_types(*gguf);
  info.chat = gguf->find("tokenizer.chat_template") != nullptr;
  describe_config(info, model::read_config(*gguf));
  return info;
}

std::vector<ModelInfo> Registry::Loader::describe(const std::vector<ModelFile>& files) {
  std::vector<ModelInfo> infos;
  for (const ModelFile& file : files) {
    std::error_code error;
    const auto time = std::filesystem::last_write_time(file.path, error);
    {
      std::lock_guard lock(mutex);
      const auto found = cache.find(file.path);
      if (found != cache.end() && found->second.first == time) {
        infos.push_back(found->second.second);
        continue;
      }
    }
    ModelInfo info;
    info.name = file.name;
    info.path = file.path;
    try {
      info = read_info(file);
    } catch (const std::exception&) {
      // Listed by its name alone; loading it says what is wrong with it.
    }
    std::lock_guard lock(mutex);
    cache[file.path] = {time, info};
    infos.push_back(std::move(info));
  }
  return infos;
}

Registry::Registry(const Config& config, uint32_t threads, serve::Engine& engine, PreparePool& pool, Loop& loop,
                   std::map<std::string, int> stored)
    : config_(config), engine_(engine), pool_(pool), loop_(loop), directories_(model_directories(config.models_dir)),
      loader_(std::make_shared<Loader>(config, threads, engine, std::move(stored))) {}

Registry::~Registry() = default;

std::shared_ptr<const serve::DiskTier> Registry::disk() const { return loader_->disk; }

std::vector<std::string> Registry::warnings() const {
  std::vector<std::string> all;
  for (const auto& [name, entry] : entries_) {
    if (entry.model != nullptr) all.insert(all.end(), entry.model->warnings.begin(), entry.model->warnings.end());
  }
  std::lock_guard lock(loader_->disk_warnings->mutex);
  const auto& disk = loader_->disk_warnings->lines;
  all.insert(all.end(), disk.begin(), disk.end());
  return all;
}

Failure Registry::no_such_model(const std::string& name, const std::vector<ModelFile>& files) const {
  std::string there;
  for (const auto& [loaded, entry] : entries_) there += (there.empty() ? "" : ", ") + loaded;
  for (const ModelFile& file : files) {
    if (!entries_.contains(file.name)) there += (there.empty() ? "" : ", ") + file.name;
  }
  Failure failure{ErrorCode::no_such_model, name.empty()
                                                ? "no model is named"
                                                : "there is no model '" + client::to_utf8(name.substr(0, 200)) + "'"};
  const std::vector<std::string> unreadable = directory_faults(directories_);
  if (!unreadable.empty()) {
    failure.message += "; ellmd " + unreadable.front();
  } else if (there.empty()) {
    failure.message += "; there are none in " + directories_.front() + " (get one: ellm pull smollm2)";
  } else {
    failure.message += std::string(name.empty() ? " and there are several; name one of: " : "; there are: ") + there;
  }
  return failure;
}

void Registry::load_now(const std::string& name_or_path) {
  ModelFile file{model_name(name_or_path), name_or_path};
  // What looks like a path, and what lies here, is a path; else it is the name of a model.
  if (name_or_path.find('/') == std::string::npos && ::access(name_or_path.c_str(), F_OK) != 0) {
    const auto files = find_model_files(directories_);
    const ModelFile* found = find_model_file(files, name_or_path);
    if (found == nullptr) throw NoSuchModel(no_such_model(name_or_path, files).message);
    file = *found;
  }
  if (const auto entry = entries_.find(file.name); entry != entries_.end()) {
    if (entry->second.path == file.path) return;
    throw model::LoadError(file.path + ": a model named '" + file.name + "' is loaded from " + entry->second.path);
  }
  Entry entry{State::loaded, file.path, loader_->load(file), {}};
  entries_.emplace(file.name, std::move(entry));
  check_weights(file.name);
  if (default_name_.empty()) default_name_ = file.name;
}

void Registry::resolve(const std::string& name, OnResolved done) {
  std::string wanted = name;
  if (wanted.empty() && entries_.contains(default_name_)) wanted = default_name_;
  if (wanted.empty() && entries_.size() == 1) wanted = entries_.begin()->first;
  if (const auto entry = entries_.find(wanted); entry != entries_.end()) {
    load_file({wanted, entry->second.path}, std::move(done));
    return;
  }
  const auto files = find_model_files(directories_);
  const ModelFile* file = find_model_file(files, wanted);
  if (wanted.empty() && entries_.empty() && files.size() == 1) file = &files.front();
  if (file == nullptr) return done(no_such_model(wanted, files));
  load_file(*file, std::move(done));
}

void Registry::load(const std::string& name_or_path, OnResolved done) {
  if (name_or_path.empty()) return done(Failure{ErrorCode::bad_request, "models: no model is named"});
  if (name_or_path.find('/') == std::string::npos) return resolve(name_or_path, std::move(done));
  load_file({model_name(name_or_path), name_or_path}, std::move(done));
}

/// Joins a load that is under way, or begins one.
void Registry::load_file(const ModelFile& file, OnResolved done) {
  const auto [found, fresh] = entries_.try_emplace(file.name);
  Entry& entry = found->second;
  if (fresh) {
    entry.path = file.path;
    to_load_.push_back(file.name);
  } else if (entry.path != file.path) {
    return done(Failure{ErrorCode::bad_request, "a model named '" + file.name + "' is loaded from " + entry.path});
  } else if (entry.state == State::loaded && !entry.checking) {
    return done(entry.model);
  } else if (entry.state == State::unloading) {
    return done(Failure{ErrorCode::busy, "model '" + file.name + "' is being unloaded", kBusyRetryMs});
  }
  entry.waiters.push_back(std::move(done));
  if (!loading_) load_next();
}

/// Weights that an earlier process left where others could have written to them are read once before they serve;
/// requests wait for that. Bad ones are loaded anew.
void Registry::check_weights(const std::string& name) {
  Entry& entry = entries_.at(name);
  if (entry.model->model->weight_state().vouched) return;
  entry.checking = true;
  auto work = [this, loader = loader_, &loop = loop_, name, model = entry.model->model]() mutable {
    const bool intact = model->weights_intact(loader->threads);
    model.reset();
    if (!intact) {
      log(Priority::warning, "model '" + name + "': the weights of an earlier run were damaged: they are loaded anew");
      loader->forget(name);
    }
    loop.post([this, name, intact] { weights_checked(name, intact); });
  };
  pool_.submit(std::move(work), PreparePool::Weight::heavy);
}

void Registry::weights_checked(const std::string& name, bool intact) {
  Entry& entry = entries_.at(name);
  entry.checking = false;
  if (intact) {
    const Resolved model = entry.model;
    for (const OnResolved& done : std::exchange(entry.waiters, {})) done(model);
    return;
  }
  entry.state = State::loading;
  entry.model.reset();
  to_load_.push_back(name);
  if (!loading_) load_next();
}

void Registry::load_next() {
  if (to_load_.empty()) return;
  loading_ = true;
  const std::string name = std::move(to_load_.front());
  to_load_.pop_front();
  Entry& entry = entries_.at(name);
  auto work = [this, loader = loader_, &loop = loop_, file = ModelFile{name, entry.path},
               source = std::exchange(entry.source, nullptr)]() mutable {
    Resolved outcome;
    try {
      outcome = loader->load(file, source.get());
    } catch (const std::exception& e) {
      outcome = Failure{ErrorCode::model_failed, e.what()};
    }
    source.reset();
    loop.post([this, name = file.name, outcome = std::move(outcome)] { loaded_one(name, outcome); });
  };
  pool_.submit(std::move(work), PreparePool::Weight::heavy);
}

void Registry::loaded_one(const std::string& name, const Resolved& outcome) {
  loading_ = false;
  Entry& entry = entries_.at(name);
  const auto waiters = std::move(entry.waiters);
  if (const auto* model = std::get_if<std::shared_ptr<const LoadedModel>>(&outcome)) {
    entry.state = State::loaded;
    entry.model = *model;
    entry.waiters.clear();
    check_weights(name);
    if (entry.checking) {
      entry.waiters = waiters;
      return load_next();
    }
  } else {
    log(Priority::error, "cannot load " + entry.path + ": " + std::get<Failure>(outcome).message);
    entries_.erase(name);
  }
  for (const OnResolved& done : waiters) done(outcome);
  if (!loading_) load_next();
}

void Registry::unload(const std::string& name, std::function<void(std::optional<Failure>)> done) {
  const auto found = entries_.find(name);
  if (found == entries_.end()) {
    std::string names;
    for (const auto& [loaded, entry] : entries_) names += (names.empty() ? "" : ", ") + loaded;
    return done(Failure{ErrorCode::no_such_model,
                        "model '" + name + "' is not loaded; loaded are: " + (names.empty() ? "none" : names)});
  }
  if (found->second.state != State::loaded || found->second.checking) {
    return done(Failure{ErrorCode::busy, "model '" + name + "' is being loaded or unloaded", kBusyRetryMs});
  }
  found->second.state = State::unloading;
  auto work = [this, loader = loader_, &loop = loop_, name, done = std::move(done)]() mutable {
    loader->forget(name);
    loop.post([this, name, done = std::move(done)] {
      entries_.erase(name);
      log(Priority::notice, "unloaded " + name);
      done(std::nullopt);
    });
  };
  pool_.submit(std::move(work), PreparePool::Weight::heavy);
}

void Registry::load_files(const std::string& name, std::shared_ptr<ModelSource> source, OnInfo done) {
  if (const auto found = entries_.find(name); found != entries_.end()) {
    return done(Failure{ErrorCode::bad_request, "a model named '" + name + "' is loaded from " + found->second.path +
                                                    ": choose another name, or `ellm unload " + name + "` first"});
  }
  const ModelFile file{name, source->files.front().path};
  entries_[name].source = std::move(source);
  entries_[name].path = file.path;
  to_load_.push_back(name);
  load_file(file, [this, done = std::move(done)](const Resolved& outcome) {
    if (const auto* failure = std::get_if<Failure>(&outcome)) return done(*failure);
    const std::string& loaded_name = std::get<std::shared_ptr<const LoadedModel>>(outcome)->name;
    for (const ModelInfo& info : loaded()) {
      if (info.name == loaded_name) return done(info);
    }
    done(Failure{ErrorCode::no_such_model, "model '" + loaded_name + "' was unloaded at once"});
  });
}

void Registry::install(const std::string& name, std::shared_ptr<ModelSource> source, bool replace,
                       std::function<bool()> cancelled, OnInfo done) {
  auto work = [loader = loader_, &loop = loop_, directory = directories_.front(), name, source = std::move(source),
               replace, cancelled = std::move(cancelled), done = std::move(done)]() mutable {
    std::variant<ModelInfo, Failure> outcome;
    try {
      const std::string path = store_model(directory, name, source->files, replace, cancelled);
      log(Priority::notice, "installed " + path);
      outcome = loader->describe({{name, path}}).front();
    } catch (const std::exception& e) {
      outcome = Failure{ErrorCode::model_failed, e.what()};
    }
    source.reset();
    loop.post([outcome = std::move(outcome), done = std::move(done)] { done(outcome); });
  };
  pool_.submit(std::move(work), PreparePool::Weight::heavy);
}

void Registry::remove(const std::string& name, std::function<void(std::optional<Failure>)> done) {
  const auto files = find_model_files(directories_);
  const ModelFile* file = find_model_file(files, name);
  if (entries_.contains(file != nullptr ? file->name : name)) {
    return done(Failure{ErrorCode::bad_request, "model '" + name + "' is loaded: `ellm unload " + name + "` first"});
  }
  const Failure absent = no_such_model(name, files);
  auto work = [loader = loader_, &loop = loop_, directories = directories_, name = file ? file->name : name,
               path = file ? file->path : "", absent, done = std::move(done)]() mutable {
    std::optional<Failure> failure;
    try {
      bool removed = !path.empty();
      if (removed) {
        remove_model_files(path);
        loader->keep.forget(name);  // of a daemon before this one
        loader->weight_keep.forget(name);
      }
      for (const std::string& directory : directories) removed |= remove_pull_folder(directory, name);
      if (removed)
        log(Priority::notice, "removed " + (path.empty() ? "what an interrupted pull left of " + name : path));
      if (!removed) failure = absent;
    } catch (const std::exception& e) {
      failure = Failure{ErrorCode::bad_request, e.what()};
    }
    loop.post([failure = std::move(failure), done = std::move(done)] { done(failure); });
  };
  pool_.submit(std::move(work), PreparePool::Weight::heavy);
}

std::vector<ModelInfo> Registry::loaded() const {
  std::vector<ModelInfo> infos;
  for (const serve::ModelRow& row : engine_.models()) {
    if (row.model == nullptr) continue;
    const model::Model& model = *row.model;
    ModelInfo& info = infos.emplace_back();
    describe_config(info, model.config());
    info.name = row.name;
    info.path = model.path();
    info.weight_types = model.weight_types();
    info.tokenizer = model.tokenizer()->description();
    info.parameters = model.parameters();
    info.file_bytes = model.file_bytes();
    info.resident_bytes = model.weight_bytes();
    info.context = row.context;
    info.loaded = true;
    info.locked = model.locked();
    info.chat = model.chat_template() != nullptr;
    info.kv_type = row.kv_type;
    info.kv_pages = row.pages;
    info.kv_pages_free = row.free_pages;
    info.kv_pages_cached = row.cached_pages;
  }
  return infos;
}

std::vector<std::string> Registry::unreadable() const { return directory_faults(directories_); }

void Registry::list(OnInfos done) {
  auto infos = loaded();
  std::vector<ModelFile> others;
  for (const ModelFile& file : find_model_files(directories_)) {
    const auto same = [&](const ModelInfo& info) { return info.name == file.name; };
    if (std::none_of(infos.begin(), infos.end(), same)) others.push_back(file);
  }
  if (others.empty()) return done(std::move(infos));
  pool_.submit([loader = loader_, &loop = loop_, infos = std::move(infos), others = std::move(others),
                done = std::move(done)]() mutable {
    for (ModelInfo& info : loader->describe(others)) infos.push_back(std::move(info));
    loop.post([infos = std::move(infos), done = std::move(done)]() mutable { done(std::move(infos)); });
  });
}

}  // namespace ellm::daemon
