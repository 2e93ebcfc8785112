// One file of a model on disk, opened for reading: its head copied to private memory as far as the parser wants it, its
// body mapped. One owner; not for several threads until parsing is over.
#pragma once
#include <sys/stat.h>

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>

namespace ellm::format {

class ModelFile {
 public:
  /// Throws FormatError: no such file, no permission, not a regular file.
  explicit ModelFile(std::string path);
  /// A file that is open already; `fd` stays the caller's.
  ModelFile(std::string path, int fd);
  ModelFile(ModelFile&& other) noexcept;
  ModelFile& operator=(ModelFile&&) = delete;
  ~ModelFile();

  const std::string& path() const { return path_; }
  uint64_t size() const { return static_cast<uint64_t>(stat_.st_size); }

  /// Bytes [0, end) of the file, end <= size(). The address never changes and the bytes stay until destruction.
  const std::byte* head(uint64_t end) { return end <= head_ready_ ? head_ : read_head(end); }
  /// Gives back what was read beyond `end` bytes of the head.
  void trim_head(uint64_t end);

  /// Copies bytes from `at` on; any thread. Throws FormatError where there are not so many (any more).
  void read(uint64_t at, std::span<std::byte> to) const;

  /// The whole file, mapped read-only at the first call.
  const std::byte* map();

  /// Throws FormatError where the file on disk is no longer the one that was opened.
  void check_unchanged() const;

 private:
  void examine();
  const std::byte* read_head(uint64_t end);

  std::string path_;
  int fd_ = -1;
  struct stat stat_{};
  std::byte* head_ = nullptr;  // reserved address space of the file's length; accessible up to head_ready_
  size_t head_reserved_ = 0, head_ready_ = 0;
  const std::byte* map_ = nullptr;
};

}  // namespace ellm::format
