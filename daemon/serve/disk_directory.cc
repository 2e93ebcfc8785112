// See disk_directory.h.
#include "daemon/serve/disk_directory.h"

#include <dirent.h>
#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <filesystem>
#include <utility>

namespace ellm::serve {
namespace {

using shm::DiskFault;

constexpr const char* kLockName = "lock";

/// -1: `why` says why.
int open_directory(const std::string& path, std::string& why) {
  std::error_code error;
  std::filesystem::create_directories(std::filesystem::path(path).parent_path(), error);
  if (error || (mkdir(path.c_str(), 0700) != 0 && errno != EEXIST)) {
    why = error ? error.message() : std::strerror(errno);
    return -1;
  }
  const int fd = ::open(path.c_str(), O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
  struct stat status{};
  if (fd < 0 || fstat(fd, &status) != 0) {
    why = std::strerror(errno);
  } else if (status.st_uid != geteuid()) {
    why = "it belongs to another user";
  } else if ((status.st_mode & 077) != 0 && fchmod(fd, 0700) != 0) {
    why = std::strerror(errno);
  } else {
    return fd;
  }
  if (fd >= 0) close(fd);
  return -1;
}

int take_lock(int directory, std::string& why) {
  const int fd = openat(directory, kLockName, O_RDWR | O_CREAT | O_NOFOLLOW | O_CLOEXEC, 0600);
  if (fd >= 0 && flock(fd, LOCK_EX | LOCK_NB) == 0) return fd;
  why = fd >= 0 && errno == EWOULDBLOCK ? "another process uses it" : std::strerror(errno);
  if (fd >= 0) close(fd);
  return -1;
}

}  // namespace

std::unique_ptr<const DiskDirectory> DiskDirectory::open(const std::string& path, std::string& why) {
  const int fd = open_directory(path, why);
  if (fd < 0) return nullptr;
  const int lock = take_lock(fd, why);
  if (lock >= 0) return std::unique_ptr<const DiskDirectory>(new DiskDirectory(fd, lock));
  close(fd);
  return nullptr;
}

DiskDirectory::~DiskDirectory() {
  close(fd_);
  close(lock_);
}

void DiskDirectory::list(const std::function<void(Entry)>& found) const {
  const int fd = openat(fd_, ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  const std::unique_ptr<DIR, int (*)(DIR*)> stream(fd < 0 ? nullptr : fdopendir(fd), closedir);
  while (const dirent* entry = stream ? readdir(stream.get()) : nullptr) {
    const std::string name = entry->d_name;
    if (name.starts_with(shm::kDiskTemporary)) remove(name);
    const auto name_space = shm::namespace_in(name);
    struct stat status{};
    if (!name_space || fstatat(fd_, name.c_str(), &status, AT_SYMLINK_NOFOLLOW) != 0) continue;
    found({name, static_cast<uint64_t>(status.st_size), *name_space, status.st_mtim.tv_sec});
  }
}

DiskFault DiskDirectory::look_at(const std::string& name, const shm::DiskFormat& format, shm::DiskRun& run,
                                 uint64_t& payload_offset) const {
  const shm::Descriptor file = open_file(name);
  if (!file) return DiskFault::unreadable;
  const DiskFault fault = shm::read_disk_header(file.get(), format, run, payload_offset);
  const bool renamed =
      fault == DiskFault::none && name != shm::disk_file_name(format, run.name_space, run.pages.front().key);
  return renamed ? DiskFault::foreign : fault;
}

shm::Descriptor DiskDirectory::open_file(const std::string& name) const {
  return shm::Descriptor(openat(fd_, name.c_str(), O_RDONLY | O_NOFOLLOW | O_CLOEXEC));
}

void DiskDirectory::remove(const std::string& name) const { unlinkat(fd_, name.c_str(), 0); }

void DiskDirectory::store_use(const std::string& name, int64_t last_use_s) const {
  const timespec times[2] = {{0, UTIME_OMIT}, {last_use_s, 0}};
  utimensat(fd_, name.c_str(), times, AT_SYMLINK_NOFOLLOW);
}

}  // namespace ellm::serve
