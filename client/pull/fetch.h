// A model from the network: its files gathered in a hidden folder beside the models, checked together, then published.
#pragma once
#include <filesystem>
#include <string>
#include <vector>

#include "client/pull/download.h"
#include "client/pull/pull_folder.h"
#include "client/pull/source.h"

namespace ellm::pull {

struct FetchOptions {
  std::vector<std::string> sha256;  // lower case, one per part, or none
  bool force = false;               // fetch anew what is there already
  DownloadOptions download;
};

/// A model's files in their hidden folder, checked: right length and checksum, and a GGUF that can be read. Whoever
/// holds it holds the lock on it. What is not published stays, and a later fetch() goes on with it.
class Staged {
 public:
  /// Fetches what is missing. Throws PullError; what can't be used is removed, what can be gone on with stays.
  static Staged fetch(const Source& source, const std::filesystem::path& directory, const FetchOptions& options,
                      const Progress& progress);

  const std::vector<std::filesystem::path>& files() const { return files_; }  // in the order of the parts
  /// Gives the files their places in the models directory, the first part last: it is the one that is found.
  std::string publish();
  /// Removes the folder: the files have gone elsewhere.
  void remove() { folder_.remove(); }

 private:
  Staged(const Source& source, const std::filesystem::path& directory)
      : directory_(directory), folder_(directory, source.name) {}

  std::filesystem::path directory_;
  PullFolder folder_;
  std::vector<std::filesystem::path> files_;
};

/// Where the model of a source would be (its first part), if it is there whole; else empty.
std::string find_installed(const Source& source, const std::filesystem::path& directory);

/// Throws PullError where the files there are not those of the checksums.
void verify_installed(const Source& source, const std::filesystem::path& directory,
                      const std::vector<std::string>& sha256, const Progress& progress);

}  // namespace ellm::pull
