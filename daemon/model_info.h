// What clients are told of a model: one that serves, and one that is a file.
#pragma once
#include <filesystem>
#include <map>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

#include "client/messages.h"
#include "daemon/model_files.h"
#include "daemon/serve/engine.h"

namespace ellm::daemon {

/// Of a loaded model.
client::ModelInfo info_of(const serve::ModelRow& row);

/// Of files: their heads are read once, until they change. Any thread.
class FileInfos {
 public:
  std::vector<client::ModelInfo> of(const std::vector<ModelFile>& files);

 private:
  std::mutex mutex_;
  std::map<std::string, std::pair<std::filesystem::file_time_type, client::ModelInfo>> cache_;  // by path
};

}  // namespace ellm::daemon
