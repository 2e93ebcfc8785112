// The files of a models directory: bringing in what a client has handed over, and removing. Slow; in the preparation
// pool.
#pragma once
#include <functional>
#include <span>
#include <stdexcept>
#include <string>

#include "daemon/format/gguf.h"

namespace ellm::daemon {

/// Why not, in one line that says what to do.
class StoreError : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

/// Why a descriptor is no model file of `bytes` bytes, or empty: it must be a regular file, open for reading.
std::string descriptor_fault(int fd, uint64_t bytes);

/// Copies the files (all parts of a model, in order) into the directory under `name`: gathered in a hidden folder,
/// checked, and only then renamed, the first part last. Returns its path. Throws StoreError.
std::string store_model(const std::string& directory, const std::string& name, std::span<const format::OpenFile> files,
                        bool replace, const std::function<bool()>& cancelled);

/// Removes what an interrupted `ellm pull` of this name has left in the directory. False: there is nothing, or a pull
/// works in it. Throws StoreError.
bool remove_pull_folder(const std::string& directory, const std::string& name);

/// Removes a model by its first part, and then the others. Throws StoreError.
void remove_model_files(const std::string& path);

}  // namespace ellm::daemon
