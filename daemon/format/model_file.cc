// The head is read, not mapped: metadata (a vocabulary, a template) is used for as long as the model serves, and a
// mapping would change or raise SIGBUS with the file.
#include "daemon/format/model_file.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <utility>

#include "daemon/format/gguf.h"

namespace ellm::format {
namespace {

constexpr uint64_t kStepBytes = 64 << 10;  // the first read; later ones double what is there
constexpr uint64_t kLargestStepBytes = 4 << 20;

[[noreturn]] void fail(const std::string& path, const std::string& what, int error) {
  throw FormatError(path + ": " + what + ": " + std::strerror(error));
}

bool same_time(const timespec& a, const timespec& b) { return a.tv_sec == b.tv_sec && a.tv_nsec == b.tv_nsec; }

}  // namespace

ModelFile::ModelFile(std::string path) : path_(std::move(path)) {
  // O_NONBLOCK: opening a FIFO must not wait for a writer. It means nothing for regular files.
  fd_ = ::open(path_.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK);
  if (fd_ < 0) fail(path_, "cannot be opened", errno);
  examine();
}

ModelFile::ModelFile(std::string path, int fd) : path_(std::move(path)), fd_(::fcntl(fd, F_DUPFD_CLOEXEC, 0)) {
  if (fd_ < 0) fail(path_, "cannot be opened", errno);
  examine();
}

void ModelFile::examine() {
  const char* problem = nullptr;
  if (::fstat(fd_, &stat_) != 0) problem = "cannot be examined";
  else if (!S_ISREG(stat_.st_mode)) problem = "is not a regular file";
  if (problem) {
    ::close(fd_);
    throw FormatError(path_ + ": " + problem);
  }
}

ModelFile::ModelFile(ModelFile&& other) noexcept
    : path_(std::move(other.path_)), fd_(std::exchange(other.fd_, -1)), stat_(other.stat_),
      head_(std::exchange(other.head_, nullptr)), head_reserved_(std::exchange(other.head_reserved_, 0)),
      head_ready_(std::exchange(other.head_ready_, 0)), map_(std::exchange(other.map_, nullptr)) {}

ModelFile::~ModelFile() {
  if (map_) ::munmap(const_cast<std::byte*>(map_), size());
  if (head_) ::munmap(head_, head_reserved_);
  if (fd_ >= 0) ::close(fd_);
}

const std::byte* ModelFile::read_head(uint64_t end) {
  if (!head_) {
    // Inaccessible address space costs no memory and no commit charge.
    head_reserved_ = (size() + kStepBytes - 1) / kStepBytes * kStepBytes;
    void* p = ::mmap(nullptr, head_reserved_, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (p == MAP_FAILED) fail(path_, "no address space for its header", errno);
    head_ = static_cast<std::byte*>(p);
  }
  const uint64_t step = std::clamp<uint64_t>(head_ready_, kStepBytes, kLargestStepBytes);
  uint64_t target = std::max(end, head_ready_ + step);
  target = (target + kStepBytes - 1) / kStepBytes * kStepBytes;  // head_ready_ stays a multiple of a page
  target = std::min<uint64_t>(target, head_reserved_);
  if (::mprotect(head_ + head_ready_, target - head_ready_, PROT_READ | PROT_WRITE) != 0)
    fail(path_, "no memory for its header", errno);
  read(head_ready_, {head_ + head_ready_, std::min(target, size()) - head_ready_});
  head_ready_ = target;
  return head_;
}

void ModelFile::read(uint64_t at, std::span<std::byte> to) const {
  while (!to.empty()) {
    const ssize_t n = ::pread(fd_, to.data(), to.size(), static_cast<off_t>(at));
    if (n < 0 && errno == EINTR) continue;
    if (n < 0) fail(path_, "cannot be read", errno);
    if (n == 0) throw FormatError(path_ + ": became shorter while it was read");
    at += static_cast<uint64_t>(n);
    to = to.subspan(static_cast<size_t>(n));
  }
}

void ModelFile::trim_head(uint64_t end) {
  if (!head_) return;
  const size_t keep = std::max<size_t>((end + kStepBytes - 1) / kStepBytes * kStepBytes, kStepBytes);
  if (keep < head_reserved_ && ::munmap(head_ + keep, head_reserved_ - keep) == 0) head_reserved_ = keep;
  head_ready_ = std::min(head_ready_, head_reserved_);
  ::mprotect(head_, head_reserved_, PROT_READ);  // only a guard against our own mistakes
}

const std::byte* ModelFile::map() {
  if (!map_) {
    void* p = ::mmap(nullptr, size(), PROT_READ, MAP_SHARED, fd_, 0);
    if (p == MAP_FAILED) fail(path_, "cannot be mapped", errno);
    map_ = static_cast<const std::byte*>(p);
  }
  return map_;
}

void ModelFile::check_unchanged() const {
  struct stat now{};
  if (::fstat(fd_, &now) != 0) fail(path_, "cannot be examined", errno);
  if (now.st_size != stat_.st_size)
    throw FormatError(path_ + ": changed while it was read: " + std::to_string(stat_.st_size) + " bytes became " +
                      std::to_string(now.st_size));
  if (!same_time(now.st_mtim, stat_.st_mtim)) throw FormatError(path_ + ": was written to while it was read");
}

}  // namespace ellm::format
