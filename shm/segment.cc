// See segment.h.
//
// Memory is taken when a page is first allocated, not when the segment is made: a budget of many gigabytes must neither
// delay the start nor be held before it is used (ftruncate takes none, fallocate would take all). But memory that is
// not there when a mapped page is first touched is a SIGBUS in the middle of a kernel. So populate() has the kernel put
// memory behind a range (MADV_POPULATE_WRITE), which reports failure like any other call; it also heeds NUMA policy and
// huge pages, as fallocate page by page would not, and spares the workers the page faults.
#include "shm/segment.h"

#include <fcntl.h>
#include <sys/file.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <system_error>
#include <utility>

#include "shm/huge_pages.h"

#ifndef MFD_NOEXEC_SEAL
#define MFD_NOEXEC_SEAL 0x0008U  // Linux 6.3
#endif

namespace ellm::shm {
namespace {

[[noreturn]] void fail(int error, const std::string& what) {
  throw std::system_error(error, std::generic_category(), "KV segment: " + what);
}

std::string path_of(const std::string& name) { return "/dev/shm/" + name; }

/// Whoever is given a memfd later can trust its mapping not to shrink under it.
constexpr int kSeals = F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL;

int open_memfd() {
  int fd = memfd_create("ellm-kv", MFD_CLOEXEC | MFD_ALLOW_SEALING | MFD_NOEXEC_SEAL);
  if (fd < 0 && errno == EINVAL) fd = memfd_create("ellm-kv", MFD_CLOEXEC | MFD_ALLOW_SEALING);
  if (fd < 0) fail(errno, "memfd_create");
  return fd;
}

void lock(int fd, const std::string& name) {
  if (flock(fd, LOCK_EX | LOCK_NB) == 0) return;
  fail(errno == EWOULDBLOCK ? EBUSY : errno, name.empty() ? "its lock" : path_of(name) + " is another process's");
}

}  // namespace

Segment::Segment(Segment&& other) noexcept
    : fd_(std::exchange(other.fd_, -1)), data_(std::exchange(other.data_, nullptr)),
      bytes_(std::exchange(other.bytes_, 0)), no_huge_pages_(other.no_huge_pages_) {}

Segment::~Segment() {
  if (data_ != nullptr) munmap(data_, bytes_);
  if (fd_ >= 0) flock(fd_, LOCK_UN);  // now, even if the kernel (khugepaged) still looks at the file
  if (fd_ >= 0) close(fd_);
}

void Segment::map(size_t bytes) {
  data_ = map_shared(fd_, bytes, PROT_READ | PROT_WRITE);  // excluded from core dumps: it holds prompts
  if (data_ == nullptr) fail(errno, "mapping " + std::to_string(bytes >> 20) + " MiB");
  bytes_ = bytes;
}

Segment Segment::make(const std::string& name, size_t bytes) {
  const int fd = name.empty() ? open_memfd()
                              : ::open(path_of(name).c_str(), O_RDWR | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, 0600);
  if (fd < 0) fail(errno, "making " + path_of(name));
  Segment segment(fd);
  if (!name.empty()) lock(fd, name);
  if (ftruncate(fd, static_cast<off_t>(bytes)) != 0) {
    const int error = errno;
    if (!name.empty()) remove(name);
    fail(error, "a size of " + std::to_string(bytes >> 20) + " MiB");
  }
  if (name.empty() && fcntl(fd, F_ADD_SEALS, kSeals) != 0) fail(errno, "sealing its size");
  segment.map(bytes);
  return segment;
}

std::optional<Segment> Segment::open(const std::string& name) {
  const int fd = ::open(path_of(name).c_str(), O_RDWR | O_NOFOLLOW | O_CLOEXEC);
  if (fd < 0 && errno == ENOENT) return std::nullopt;
  if (fd < 0) fail(errno, "opening " + path_of(name));
  Segment segment(fd);
  struct stat status{};
  if (fstat(fd, &status) != 0) fail(errno, path_of(name));
  if (!S_ISREG(status.st_mode) || status.st_uid != geteuid() || (status.st_mode & 077) != 0)
    fail(EPERM, path_of(name) + " is not this user's alone");
  lock(fd, name);
  if (status.st_size > 0) segment.map(static_cast<size_t>(status.st_size));
  return segment;
}

Segment Segment::adopt(int fd) {
  Segment segment(fd);
  struct stat status{};
  if (fstat(fd, &status) != 0) fail(errno, "a descriptor that was passed in");
  const int seals = fcntl(fd, F_GET_SEALS);
  if (seals < 0 || (seals & kSeals) != kSeals)
    fail(EINVAL, "a descriptor that was passed in is no memfd of final size");
  fcntl(fd, F_SETFD, FD_CLOEXEC);
  if (status.st_size > 0) segment.map(static_cast<size_t>(status.st_size));
  return segment;
}

void Segment::remove(const std::string& name) { unlink(path_of(name).c_str()); }

int Segment::populate(size_t offset, size_t bytes) const {
  const size_t first = offset / kSmallPage * kSmallPage, last = round_up_to(offset + bytes, kSmallPage);
  if (const int error = shm::populate(data_ + first, last - first); error != EINVAL) return error;
  return fallocate(fd_, 0, static_cast<off_t>(offset), static_cast<off_t>(bytes)) == 0 ? 0
                                                                                       : errno;  // before Linux 5.14
}

/// The huge pages that a range touches and the segment has whole; those that have memory stay as they are.
int Segment::populate_huge_pages(size_t offset, size_t bytes) {
  for (size_t at = offset / kHugePage * kHugePage; at < offset + bytes && !no_huge_pages_; at += kHugePage) {
    if (at + kHugePage > bytes_ || has_memory(at, kHugePage)) continue;
    if (const int error = populate_huge(fd_, at, data_ + at, kHugePage, no_huge_pages_)) return error;
  }
  return populate(offset, bytes);
}

bool Segment::has_memory(size_t offset, size_t bytes) const {
  const auto at = static_cast<off_t>(offset);
  if (lseek(fd_, at, SEEK_DATA) != at) return false;
  const off_t hole = lseek(fd_, at, SEEK_HOLE);
  return hole >= at + static_cast<off_t>(bytes);
}

std::vector<std::pair<size_t, size_t>> Segment::memory(size_t offset, size_t end) const {
  std::vector<std::pair<size_t, size_t>> ranges;
  for (auto at = static_cast<off_t>(offset);;) {
    const off_t first = lseek(fd_, at, SEEK_DATA);
    if (first < 0 || first >= static_cast<off_t>(end)) return ranges;
    at = lseek(fd_, first, SEEK_HOLE);
    if (at < 0) return ranges;
    ranges.emplace_back(first, std::min(static_cast<size_t>(at), end));
  }
}

}  // namespace ellm::shm
