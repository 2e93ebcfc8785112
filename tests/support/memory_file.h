// A file in memory that can be opened by a path.
#pragma once
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cstdint>
#include <stdexcept>
#include <string>
#include <string_view>

namespace ellm::tests {

class MemoryFile {
 public:
  MemoryFile() : fd_(::memfd_create("ellm-test", MFD_CLOEXEC)), path_("/proc/self/fd/" + std::to_string(fd_)) {
    if (fd_ < 0) throw std::runtime_error("memfd_create failed");
  }
  MemoryFile(const MemoryFile&) = delete;
  MemoryFile& operator=(const MemoryFile&) = delete;
  ~MemoryFile() { ::close(fd_); }

  /// `head`, cut or followed by zeros to `size` bytes.
  void fill(std::string_view head, uint64_t size) {
    if (::ftruncate(fd_, 0) != 0 || ::ftruncate(fd_, static_cast<off_t>(size)) != 0 ||
        ::pwrite(fd_, head.data(), std::min<uint64_t>(head.size(), size), 0) < 0)
      throw std::runtime_error("cannot fill a file in memory");
  }
  const std::string& path() const { return path_; }

 private:
  int fd_;
  std::string path_;
};

}  // namespace ellm::tests
