// The models: which are loaded, which could be, and loading and unloading them, one at a time, in the preparation pool
// (model_loader.h).
// The I/O thread owns it; all callbacks run there.
//
//   (file) ──load──► loading ──► loaded ──unload──► unloading ──► (file)
//                       └─ failed: every waiter is told why; the next request tries again
#pragma once
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <variant>
#include <vector>

#include "client/messages.h"
#include "daemon/config.h"
#include "daemon/loaded_model.h"
#include "daemon/loop.h"
#include "daemon/model_files.h"
#include "daemon/prepare_pool.h"
#include "daemon/serve/disk_tier.h"
#include "daemon/serve/engine.h"

namespace ellm::daemon {

class FileInfos;
class ModelLoader;

/// What a client is told: translated to an Error message in one place.
struct Failure {
  client::ErrorCode code = client::ErrorCode::internal;
  std::string message;
  uint32_t retry_after_ms = 0;
};

class Registry {
 public:
  using Resolved = std::variant<std::shared_ptr<const LoadedModel>, Failure>;
  using OnResolved = std::function<void(const Resolved&)>;
  using OnInfos = std::function<void(std::vector<client::ModelInfo>)>;

  /// `stored`: descriptors that systemd kept (notify.h).
  Registry(const Config& config, uint32_t threads, serve::Engine& engine, PreparePool& pool, Loop& loop,
           std::map<std::string, int> stored);
  ~Registry();

  /// At the start, before the loop runs: loads a model and returns. Throws what Model::load throws, or NoSuchModel.
  void load_now(const std::string& name_or_path);

  /// The model of a request, loaded now if need be; empty: the default one. `done` may be called before this returns.
  void resolve(const std::string& name, OnResolved done);
  /// For an administrator: a name, or a path of a file.
  void load(const std::string& name_or_path, OnResolved done);
  void unload(const std::string& name, std::function<void(std::optional<Failure>)> done);

  using OnInfo = std::function<void(const std::variant<client::ModelInfo, Failure>&)>;
  /// Loads what was handed over, under a name that no loaded model has.
  void load_files(const std::string& name, std::shared_ptr<ModelSource> source, OnInfo done);
  /// Copies it into the models directory. `cancelled` is asked in the pool.
  void install(const std::string& name, std::shared_ptr<ModelSource> source, bool replace,
               std::function<bool()> cancelled, OnInfo done);
  /// Removes a model that is not loaded from the models directory.
  void remove(const std::string& name, std::function<void(std::optional<Failure>)> done);

  std::vector<client::ModelInfo> loaded() const;
  /// Loaded models and the files of the directories.
  void list(OnInfos done);
  /// Models directories that cannot be read.
  std::vector<std::string> unreadable() const;
  /// Prefixes on disk; null: there is no such tier.
  std::shared_ptr<const serve::DiskTier> disk() const;
  /// Of the loaded models and the disk tier, for `status`.
  std::vector<std::string> warnings() const;

 private:
  enum class State : uint8_t { loading, loaded, unloading };
  struct Entry {
    State state = State::loading;
    std::string path;
    std::shared_ptr<const LoadedModel> model;
    std::vector<OnResolved> waiters;
    std::shared_ptr<ModelSource> source = nullptr;  // until it is loaded
    bool checking = false;                          // loaded, but whoever asks for it waits
  };

  Failure no_such_model(const std::string& name, const std::vector<ModelFile>& files) const;
  void load_file(const ModelFile& file, OnResolved done);
  void load_next();
  void loaded_one(const std::string& name, const Resolved& outcome);
  void check_weights(const std::string& name);
  void weights_checked(const std::string& name, bool intact);

  const Config& config_;
  serve::Engine& engine_;
  PreparePool& pool_;
  Loop& loop_;
  const std::vector<std::string> directories_;
  // Used in the pool, where work may outlive this.
  const std::shared_ptr<ModelLoader> loader_;
  const std::shared_ptr<FileInfos> file_infos_;
  std::map<std::string, Entry> entries_;
  std::deque<std::string> to_load_;
  bool loading_ = false;
  std::string default_name_;  // the first model of the configuration
};

/// "there is no model 'x' …"
class NoSuchModel : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

}  // namespace ellm::daemon
