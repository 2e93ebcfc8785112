// See pull_folder.h.
#include "client/pull/pull_folder.h"

#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cstring>
#include <utility>
#include <vector>

#include "client/pull/failure.h"
#include "daemon/format/model_name.h"

namespace ellm::pull {
namespace {

namespace fs = std::filesystem;

/// The lock, or -1 with errno.
int lock(const fs::path& folder, int flags) {
  const int fd = ::open((folder / format::kPullLock).c_str(), O_RDWR | O_CLOEXEC | O_NOFOLLOW | flags, 0644);
  if (fd < 0 || ::flock(fd, LOCK_EX | LOCK_NB) == 0) return fd;
  const int error = errno;
  ::close(fd);
  errno = error;
  return -1;
}

/// Whoever had the lock before may have removed the folder meanwhile: then it is a lock on nothing.
bool still_there(const fs::path& folder, int fd) {
  struct stat held{}, there{};
  return ::fstat(fd, &held) == 0 && ::stat((folder / format::kPullLock).c_str(), &there) == 0 &&
         held.st_ino == there.st_ino && held.st_dev == there.st_dev;
}

void remove_locked(const fs::path& folder) {
  std::error_code ignored;
  for (const auto& each : fs::directory_iterator(folder, ignored)) {
    if (each.path().filename() != format::kPullLock) fs::remove_all(each.path(), ignored);
  }
  fs::remove_all(folder, ignored);  // the lock last
}

struct Contents {
  uint64_t bytes = 0;
  fs::file_time_type newest = fs::file_time_type::min();
};

Contents contents_of(const fs::path& folder) {
  Contents contents;
  std::error_code error;
  for (fs::recursive_directory_iterator it(folder, error), end; !error && it != end; it.increment(error)) {
    std::error_code ignored;
    if (!it->is_regular_file(ignored)) continue;
    contents.bytes += it->file_size(ignored);
    contents.newest = std::max(contents.newest, it->last_write_time(ignored));
  }
  return contents;
}

}  // namespace

PullFolder::PullFolder(const fs::path& directory, const std::string& name)
    : path_(directory / (format::kPullPrefix + name)) {
  do {
    if (fd_ >= 0) ::close(fd_);
    fs::create_directories(path_);
    fd_ = lock(path_, O_CREAT);
    if (fd_ < 0 && errno == EWOULDBLOCK)
      throw PullError(EX_TEMPFAIL, "another pull of this model is running; wait for it");
    if (fd_ < 0 && errno != ENOENT) throw PullError(EX_CANTCREAT, path_.string() + ": " + std::strerror(errno));
  } while (fd_ < 0 || !still_there(path_, fd_));
}

PullFolder::PullFolder(PullFolder&& other) noexcept
    : path_(std::move(other.path_)), fd_(std::exchange(other.fd_, -1)) {}

PullFolder::~PullFolder() {
  if (fd_ >= 0) ::close(fd_);
}

void PullFolder::remove() { remove_locked(path_); }

void remove_abandoned(const fs::path& directory, uint32_t days,
                      const std::function<void(const std::string& name, uint64_t bytes)>& told) {
  std::error_code error;
  std::vector<fs::path> folders;
  for (fs::directory_iterator it(directory, error), end; !error && it != end; it.increment(error)) {
    std::error_code ignored;
    if (it->path().filename().string().starts_with(format::kPullPrefix) && it->is_directory(ignored) &&
        !it->is_symlink(ignored))
      folders.push_back(it->path());
  }
  for (const fs::path& folder : folders) {
    const int fd = lock(folder, 0);
    if (fd < 0) continue;  // somebody works in it, or it is none of a pull's
    const Contents contents = contents_of(folder);
    if (still_there(folder, fd) && fs::file_time_type::clock::now() - contents.newest > std::chrono::hours(24) * days) {
      remove_locked(folder);
      told(folder.filename().string().substr(std::strlen(format::kPullPrefix)), contents.bytes);
    }
    ::close(fd);
  }
}

}  // namespace ellm::pull
