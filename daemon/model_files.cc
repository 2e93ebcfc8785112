// See model_files.h.
#include "daemon/model_files.h"

#include <strings.h>

#include <algorithm>
#include <filesystem>

#include "client/places.h"

namespace ellm::daemon {
namespace {

constexpr std::string_view kExtension = ".gguf";

}  // namespace

std::vector<ModelFile> find_model_files(const std::vector<std::string>& directories) {
  namespace fs = std::filesystem;
  std::vector<ModelFile> files;
  for (const std::string& directory : directories) {
    std::error_code error;
    std::vector<ModelFile> here;
    for (fs::directory_iterator it(directory, error), end; !error && it != end; it.increment(error)) {
      const std::string file = it->path().filename().string();
      std::error_code ignored;
      if (file.starts_with('.') || !file.ends_with(kExtension) || !it->is_regular_file(ignored)) continue;
      if (format::PartName part = format::parse_part_name(file); part.number == 1) {
        here.push_back({std::move(part.stem), it->path().string()});
      }
    }
    for (ModelFile& file : here) {
      const auto same = [&](const ModelFile& other) { return other.name == file.name; };
      if (std::none_of(files.begin(), files.end(), same)) files.push_back(std::move(file));
    }
  }
  std::sort(files.begin(), files.end(), [](const auto& a, const auto& b) { return a.name < b.name; });
  return files;
}

std::vector<std::string> directory_faults(const std::vector<std::string>& directories) {
  std::vector<std::string> faults;
  for (const std::string& directory : directories) {
    std::error_code error;
    std::filesystem::directory_iterator it(directory, error);
    if (error && error != std::errc::no_such_file_or_directory)
      faults.push_back("cannot read " + directory + ": " + error.message());
  }
  return faults;
}

const ModelFile* find_model_file(const std::vector<ModelFile>& files, const std::string& name) {
  for (const ModelFile& file : files) {
    if (file.name == name || file.path.substr(file.path.rfind('/') + 1) == name) return &file;
  }
  const ModelFile* found = nullptr;
  for (const ModelFile& file : files) {
    if (::strcasecmp(file.name.c_str(), name.c_str()) != 0) continue;
    if (found != nullptr) return nullptr;
    found = &file;
  }
  return found;
}

std::vector<std::string> model_directories(const std::string& configured) {
  if (!configured.empty()) return {configured};
  const std::string system = "/var/lib/ellm/models", own = client::models_directory();
  return own == system ? std::vector{system} : std::vector{own, system};
}

}  // namespace ellm::daemon
