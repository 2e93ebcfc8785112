// See model_info.h.
#include "daemon/model_info.h"

#include <utility>

#include "daemon/format/inspect.h"

namespace ellm::daemon {
namespace {

using client::ModelInfo;

void describe_config(ModelInfo& info, const model::ModelConfig& config) {
  info.architecture = config.architecture;
  info.context = config.context;
  info.size_label = config.size_label;
}

ModelInfo read_info(const ModelFile& file) {
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

}  // namespace

ModelInfo info_of(const serve::ModelRow& row) {
  const model::Model& model = *row.model;
  ModelInfo info;
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
  return info;
}

std::vector<ModelInfo> FileInfos::of(const std::vector<ModelFile>& files) {
  std::vector<ModelInfo> infos;
  for (const ModelFile& file : files) {
    std::error_code error;
    const auto time = std::filesystem::last_write_time(file.path, error);
    {
      std::lock_guard lock(mutex_);
      const auto found = cache_.find(file.path);
      if (found != cache_.end() && found->second.first == time) {
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
    std::lock_guard lock(mutex_);
    cache_[file.path] = {time, info};
    infos.push_back(std::move(info));
  }
  return infos;
}

}  // namespace ellm::daemon
