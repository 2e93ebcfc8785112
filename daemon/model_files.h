// Model files on disk and the names under which users know them. Reads directories; any thread.
#pragma once
#include <optional>
#include <string>
#include <vector>

#include "daemon/format/model_name.h"

namespace ellm::daemon {

using format::model_name;

struct ModelFile {
  std::string name, path;
};

/// The GGUF files of the directories, by name; of a split model its first part. An earlier directory hides the same
/// name in a later one; a directory that cannot be read counts as empty.
std::vector<ModelFile> find_model_files(const std::vector<std::string>& directories);

/// Which of the directories are there and cannot be read: "cannot read DIR: Permission denied".
std::vector<std::string> directory_faults(const std::vector<std::string>& directories);

/// By name or file name, exactly; else the only one that differs in case alone.
const ModelFile* find_model_file(const std::vector<ModelFile>& files, const std::string& name);

/// The configured directory, or those of places.h that there are.
std::vector<std::string> model_directories(const std::string& configured);

}  // namespace ellm::daemon
