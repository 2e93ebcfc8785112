#include "tools/bench/cold_start.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <chrono>
#include <system_error>

#include "shm/sealed_memory.h"

namespace ellm::bench {
namespace {

class File {
 public:
  explicit File(const std::string& path) : fd_(::open(path.c_str(), O_RDONLY | O_CLOEXEC)) {
    struct stat s;
    if (fd_ < 0 || ::fstat(fd_, &s) != 0) throw std::system_error(errno, std::generic_category(), path);
    bytes_ = static_cast<size_t>(s.st_size);
  }
  ~File() { ::close(fd_); }
  int fd() const { return fd_; }
  size_t bytes() const { return bytes_; }

 private:
  int fd_;
  size_t bytes_ = 0;
};

}  // namespace

double time_copy(const std::string& path, runtime::WorkerPool& pool) {
  constexpr size_t kPiece = size_t{4} << 20;
  const File file(path);
  const auto begin = std::chrono::steady_clock::now();
  shm::SealedMemory memory = shm::SealedMemory::make({.bytes = file.bytes()});
  std::atomic<size_t> next = 0;
  std::atomic<int> error = 0;
  pool.run([&](runtime::Worker&) {
    for (size_t at; (at = next.fetch_add(kPiece)) < file.bytes() && error == 0;) {
      const size_t end = std::min(at + kPiece, file.bytes());
      if (const int failed = memory.populate(at, end)) {
        error = failed;
        return;
      }
      while (at < end) {
        const ssize_t n = ::pread(file.fd(), memory.data() + at, end - at, static_cast<off_t>(at));
        if (n <= 0) {
          if (n < 0 && errno == EINTR) continue;
          error = n < 0 ? errno : EIO;
          return;
        }
        at += static_cast<size_t>(n);
      }
    }
  });
  if (error != 0) throw std::system_error(error, std::generic_category(), "cannot copy " + path);
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
}

}  // namespace ellm::bench
