// See registry.h.
#include "daemon/registry.h"

#include <unistd.h>

#include <algorithm>
#include <utility>

#include "client/utf8.h"
#include "daemon/in_pool.h"
#include "daemon/log.h"
#include "daemon/model_info.h"
#include "daemon/model_loader.h"
#include "daemon/model_store.h"

namespace ellm::daemon {
namespace {

using client::ErrorCode;
using client::ModelInfo;

constexpr uint32_t kBusyRetryMs = 500;

Failure lacked_memory() { return {ErrorCode::model_failed, kNoMemory}; }

}  // namespace

Registry::Registry(const Config& config, uint32_t threads, serve::Engine& engine, PreparePool& pool, Loop& loop,
                   std::map<std::string, int> stored)
    : config_(config), engine_(engine), pool_(pool), loop_(loop), directories_(model_directories(config.models_dir)),
      loader_(std::make_shared<ModelLoader>(config, threads, engine, std::move(stored))),
      file_infos_(std::make_shared<FileInfos>()) {}

Registry::~Registry() = default;

std::shared_ptr<const serve::DiskTier> Registry::disk() const { return loader_->disk(); }

std::vector<std::string> Registry::warnings() const {
  std::vector<std::string> all;
  for (const auto& [name, entry] : entries_) {
    if (entry.model != nullptr) all.insert(all.end(), entry.model->warnings.begin(), entry.model->warnings.end());
  }
  const std::vector<std::string> disk = loader_->disk_warnings();
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
  auto work = [loader = loader_, name, model = entry.model->model]() mutable {
    const bool intact = model->weights_intact(loader->threads());
    model.reset();
    if (!intact) {
      log(Priority::warning, "model '" + name + "': the weights of an earlier run were damaged: they are loaded anew");
      loader->unload(name);
    }
    return intact;
  };
  in_pool(pool_, loop_, PreparePool::Weight::heavy, std::move(work),
          [this, name](std::optional<bool> intact) { weights_checked(name, intact.value_or(false)); });
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
  auto work = [loader = loader_, file = ModelFile{name, entry.path},
               source = std::exchange(entry.source, nullptr)]() -> Resolved {
    try {
      return loader->load(file, source.get());
    } catch (const std::exception& e) {
      return Failure{ErrorCode::model_failed, e.what()};
    }
  };
  in_pool(
      pool_, loop_, PreparePool::Weight::heavy, std::move(work),
      [this, name](const std::optional<Resolved>& outcome) { loaded_one(name, outcome.value_or(lacked_memory())); });
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
  in_pool(
      pool_, loop_, PreparePool::Weight::heavy,
      [loader = loader_, name] {
        loader->unload(name);
        return true;
      },
      [this, name, done = std::move(done)](std::optional<bool>) {
        entries_.erase(name);
        log(Priority::notice, "unloaded " + name);
        done(std::nullopt);
      });
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
  using Outcome = std::variant<ModelInfo, Failure>;
  auto work = [infos = file_infos_, directory = directories_.front(), name, source = std::move(source), replace,
               cancelled = std::move(cancelled)]() -> Outcome {
    try {
      const std::string path = store_model(directory, name, source->files, replace, cancelled);
      log(Priority::notice, "installed " + path);
      return infos->of({{name, path}}).front();
    } catch (const std::exception& e) {
      return Failure{ErrorCode::model_failed, e.what()};
    }
  };
  in_pool(pool_, loop_, PreparePool::Weight::heavy, std::move(work),
          [done = std::move(done)](const std::optional<Outcome>& outcome) { done(outcome.value_or(lacked_memory())); });
}

void Registry::remove(const std::string& name, std::function<void(std::optional<Failure>)> done) {
  const auto files = find_model_files(directories_);
  const ModelFile* file = find_model_file(files, name);
  if (entries_.contains(file != nullptr ? file->name : name)) {
    return done(Failure{ErrorCode::bad_request, "model '" + name + "' is loaded: `ellm unload " + name + "` first"});
  }
  const Failure absent = no_such_model(name, files);
  auto work = [loader = loader_, directories = directories_, name = file ? file->name : name,
               path = file ? file->path : "", absent]() -> std::optional<Failure> {
    try {
      bool removed = !path.empty();
      if (removed) {
        remove_model_files(path);
        loader->forget_kept(name);
      }
      for (const std::string& directory : directories) removed |= remove_pull_folder(directory, name);
      if (removed)
        log(Priority::notice, "removed " + (path.empty() ? "what an interrupted pull left of " + name : path));
      return removed ? std::nullopt : std::optional(absent);
    } catch (const std::exception& e) {
      return Failure{ErrorCode::bad_request, e.what()};
    }
  };
  in_pool(pool_, loop_, PreparePool::Weight::heavy, std::move(work),
          [done = std::move(done)](const auto& outcome) { done(outcome.value_or(lacked_memory())); });
}

std::vector<ModelInfo> Registry::loaded() const {
  std::vector<ModelInfo> infos;
  for (const serve::ModelRow& row : engine_.models()) {
    if (row.model != nullptr) infos.push_back(info_of(row));
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
  auto work = [file_infos = file_infos_, infos = std::move(infos), others = std::move(others)]() mutable {
    for (ModelInfo& info : file_infos->of(others)) infos.push_back(std::move(info));
    return std::move(infos);
  };
  in_pool(pool_, loop_, PreparePool::Weight::light, std::move(work),
          [done = std::move(done)](auto outcome) { done(std::move(outcome).value_or(std::vector<ModelInfo>())); });
}

}  // namespace ellm::daemon
