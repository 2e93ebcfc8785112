// See model_store.h.
#include "daemon/model_store.h"

#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <filesystem>
#include <memory>

#include "daemon/descriptor.h"
#include "daemon/format/model_name.h"
#include "daemon/kv_plan.h"

namespace ellm::daemon {
namespace {

namespace fs = std::filesystem;

constexpr size_t kBlockBytes = 1 << 20;

[[noreturn]] void fail(const fs::path& path, const std::string& what) {
  throw StoreError(path.string() + ": " + what + ": " + std::strerror(errno));
}

struct stat status_of(int fd) {
  struct stat status{};
  ::fstat(fd, &status);
  return status;
}

void require_space(const fs::path& directory, uint64_t bytes) {
  const fs::space_info space = fs::space(directory);
  if (space.available >= bytes) return;
  throw StoreError(directory.string() + ": " + human_bytes(bytes) + " are needed, " + human_bytes(space.available) +
                   " are free");
}

/// Whatever stands in the folder goes with it.
struct Staging {
  fs::path folder;
  explicit Staging(fs::path path) : folder(std::move(path)) {
    fs::remove_all(folder);
    fs::create_directories(folder);
  }
  ~Staging() {
    std::error_code ignored;
    fs::remove_all(folder, ignored);
  }
};

void copy_file(const format::OpenFile& from, const fs::path& to, const std::function<bool()>& cancelled) {
  const Descriptor out(::open(to.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0644));
  if (!out) fail(to, "cannot be made");
  ::fchmod(out.get(), 0644);  // whatever the service's umask is: users may look at models
  const std::unique_ptr<char[]> block(new char[kBlockBytes]);
  const auto size = static_cast<uint64_t>(status_of(from.fd).st_size);
  for (uint64_t at = 0; at < size;) {
    if (cancelled()) throw StoreError("cancelled");
    ssize_t got = ::pread(from.fd, block.get(), kBlockBytes, static_cast<off_t>(at));
    if (got < 0 && errno == EINTR) continue;
    if (got < 0) fail(from.path, "cannot be read");
    if (got == 0) throw StoreError(from.path + ": became shorter while it was copied");
    for (ssize_t done = 0; done < got;) {
      const ssize_t n = ::write(out.get(), block.get() + done, static_cast<size_t>(got - done));
      if (n < 0 && errno == EINTR) continue;
      if (n < 0) fail(to.parent_path().parent_path(), "cannot be written to");
      done += n;
    }
    at += static_cast<uint64_t>(got);
  }
  if (::fsync(out.get()) != 0) fail(to.parent_path().parent_path(), "cannot be written to");
}

/// Errors name the file as it would be called.
void check_model(const fs::path& folder, const fs::path& first) try {
  format::Gguf::open((folder / first).string());
} catch (const format::FormatError& e) {
  const std::string prefix = folder.string() + "/";
  std::string text = e.what();
  for (size_t at; (at = text.find(prefix)) != std::string::npos;) text.erase(at, prefix.size());
  throw StoreError(text);
}

}  // namespace

std::string descriptor_fault(int fd, uint64_t bytes) {
  const struct stat status = status_of(fd);
  if (!S_ISREG(status.st_mode)) return "is not a regular file";
  const int flags = ::fcntl(fd, F_GETFL);
  if (flags < 0 || (flags & O_PATH) != 0 || (flags & O_ACCMODE) == O_WRONLY) return "is not open for reading";
  if (static_cast<uint64_t>(status.st_size) == bytes) return {};
  return "has " + std::to_string(status.st_size) + " bytes, " + std::to_string(bytes) + " were announced";
}

std::string store_model(const std::string& directory, const std::string& name, std::span<const format::OpenFile> files,
                        bool replace, const std::function<bool()>& cancelled) try {
  fs::create_directories(directory);
  const auto target = [&](size_t i) { return fs::path(directory) / format::part_file_name(name, i + 1, files.size()); };
  if (!replace && fs::exists(target(0))) {
    throw StoreError(target(0).string() + " is there already: `ellm rm " + name + "` first, or choose another name");
  }
  uint64_t bytes = 0;
  for (const format::OpenFile& file : files) bytes += static_cast<uint64_t>(status_of(file.fd).st_size);
  require_space(directory, bytes);
  const Staging staging(fs::path(directory) / (".add-" + name));
  for (size_t i = 0; i < files.size(); ++i) copy_file(files[i], staging.folder / target(i).filename(), cancelled);
  check_model(staging.folder, target(0).filename());
  for (size_t i = files.size(); i-- > 0;) fs::rename(staging.folder / target(i).filename(), target(i));
  return target(0).string();
} catch (const fs::filesystem_error& e) {
  throw StoreError(e.path1().string() + ": " + e.code().message());
}

bool remove_pull_folder(const std::string& directory, const std::string& name) {
  if (!format::model_name_fault(name).empty()) return false;
  const fs::path folder = fs::path(directory) / (format::kPullPrefix + name);
  const Descriptor lock(::open((folder / format::kPullLock).c_str(), O_RDWR | O_CLOEXEC | O_NOFOLLOW));
  if (!lock || ::flock(lock.get(), LOCK_EX | LOCK_NB) != 0) return false;
  std::error_code error;
  fs::remove_all(folder, error);
  if (error) throw StoreError(folder.string() + ": cannot be removed: " + error.message());
  return true;
}

void remove_model_files(const std::string& path) {
  const format::PartName part = format::parse_part_name(path);
  const fs::path directory = fs::path(path).parent_path();
  if (::unlink(path.c_str()) != 0) fail(path, "cannot be removed");
  for (uint32_t number = 2; number <= part.count; ++number) {
    const fs::path other = directory / format::part_file_name(part.stem, number, part.count);
    if (::unlink(other.c_str()) != 0 && errno != ENOENT) fail(other, "cannot be removed");
  }
}

}  // namespace ellm::daemon
