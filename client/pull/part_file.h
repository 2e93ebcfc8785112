// Files in the making: written under a hidden name, checked, and only then renamed into place. One thread.
#pragma once
#include <cstdint>
#include <filesystem>
#include <functional>
#include <memory>
#include <span>
#include <string>

struct evp_md_ctx_st;

namespace ellm::pull {

/// Told after each piece of work: what is being done, how far (bytes of `total`; 0: unknown).
using Progress = std::function<void(const std::string& what, uint64_t done, uint64_t total)>;

class Sha256 {
 public:
  Sha256();
  void add(std::span<const char> bytes);
  /// Ends the sum.
  std::string hex();

 private:
  std::unique_ptr<evp_md_ctx_st, void (*)(evp_md_ctx_st*)> context_;
};

/// Sixty-four hexadecimal digits; `text` in lower case then, else empty.
std::string parse_sha256(std::string_view text);

/// Reads a whole file, block by block. Throws PullError.
void read_file(const std::filesystem::path& path, const std::function<void(std::span<const char>)>& sink);

/// A file under a hidden name that gets its real one by publish(), or vanishes.
class PartFile {
 public:
  explicit PartFile(std::filesystem::path target);
  ~PartFile();
  PartFile(const PartFile&) = delete;
  PartFile& operator=(const PartFile&) = delete;
  void write(std::span<const char> bytes);
  uint64_t written() const { return written_; }
  void publish();

 private:
  std::filesystem::path target_, part_;
  int fd_ = -1;
  uint64_t written_ = 0;
  bool published_ = false;
};

/// Throws PullError with both numbers where the file system of `directory` has less than `bytes` left.
void require_space(const std::filesystem::path& directory, uint64_t bytes);

/// The error of a write that failed: disk full, quota, limit; with what is left.
[[noreturn]] void fail_to_write(const std::filesystem::path& path, int error);

/// Flushes to the disk and renames. Throws PullError.
void publish(const std::filesystem::path& file, const std::filesystem::path& target);

}  // namespace ellm::pull
