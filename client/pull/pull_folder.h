// .pull-NAME beside the models: what a pull of NAME has so far. Whoever works in it holds the lock on its file `lock`,
// as ellmd does that removes it with its model (daemon/model_store.cc). One thread.
#pragma once
#include <filesystem>
#include <functional>
#include <string>

namespace ellm::pull {

class PullFolder {
 public:
  /// Makes the folder where there is none, and locks it: two pulls of one model at once would write into one file.
  /// Throws PullError.
  PullFolder(const std::filesystem::path& directory, const std::string& name);
  PullFolder(PullFolder&& other) noexcept;
  PullFolder& operator=(PullFolder&&) = delete;
  ~PullFolder();

  const std::filesystem::path& path() const { return path_; }
  /// With all that is in it, while the lock is held.
  void remove();

 private:
  std::filesystem::path path_;
  int fd_ = -1;
};

/// Removes the folders that no pull has touched for `days`, but for those that one is working in; `told` gets each
/// one's name and size.
void remove_abandoned(const std::filesystem::path& directory, uint32_t days,
                      const std::function<void(const std::string& name, uint64_t bytes)>& told);

}  // namespace ellm::pull
