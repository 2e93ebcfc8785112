// See cache_drop.h.
#include "client/cli/cache_drop.h"

#include <dirent.h>
#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <memory>

#include "client/cli/failure.h"

namespace ellm::cli {
namespace {

constexpr const char* kFolder = "/dev/shm";

/// A segment that a daemon has is locked.
void drop_segment(const std::string& path, Dropped& dropped) {
  const int fd = open(path.c_str(), O_RDWR | O_NOFOLLOW | O_CLOEXEC);
  if (fd < 0 && errno == ENOENT) return;
  if (fd < 0) throw Failure(kDenied, path + ": " + std::strerror(errno));
  struct stat status{};
  fstat(fd, &status);
  if (flock(fd, LOCK_EX | LOCK_NB) != 0) {
    ++dropped.in_use;
  } else if (unlink(path.c_str()) == 0) {
    ++dropped.segments;
    dropped.bytes += static_cast<uint64_t>(status.st_blocks) * 512;
  }
  close(fd);
}

}  // namespace

Dropped drop_segments(bool weights) {
  Dropped dropped;
  const std::unique_ptr<DIR, int (*)(DIR*)> folder(opendir(kFolder), closedir);
  if (!folder) return dropped;
  const std::string mine = std::to_string(geteuid()) + ".";
  while (const dirent* entry = readdir(folder.get())) {
    const std::string name = entry->d_name;
    if (name.starts_with("ellm-kv." + mine) || (weights && name.starts_with("ellm-weights." + mine)))
      drop_segment(std::string(kFolder) + "/" + name, dropped);
  }
  return dropped;
}

}  // namespace ellm::cli
