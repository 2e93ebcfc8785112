// See huge_pages.h.
#include "shm/huge_pages.h"

#include <fcntl.h>
#include <sys/mman.h>

#include <cerrno>
#include <cstdint>

#ifndef MADV_COLLAPSE
#define MADV_COLLAPSE 25  // Linux 6.1
#endif

namespace ellm::shm {

std::byte* map_shared(int fd, size_t bytes, int protection, std::byte* at) {
  std::byte* const given = at;
  if (at == nullptr) {
    void* raw = ::mmap(nullptr, bytes + kHugePage, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (raw == MAP_FAILED) return nullptr;
    auto* begin = static_cast<std::byte*>(raw);
    const auto address = reinterpret_cast<uintptr_t>(raw);
    const size_t skip = round_up_to(address, kHugePage) - address;
    at = begin + skip;
    if (skip != 0) ::munmap(begin, skip);
    const size_t end = skip + round_up_to(bytes, kSmallPage), all = round_up_to(bytes + kHugePage, kSmallPage);
    if (end < all) ::munmap(begin + end, all - end);
  }
  if (::mmap(at, bytes, protection, MAP_SHARED | MAP_FIXED, fd, 0) == MAP_FAILED) {
    const int error = errno;
    if (given == nullptr) ::munmap(at, bytes);
    errno = error;
    return nullptr;
  }
  if (::madvise(at, bytes, MADV_DONTDUMP) != 0) {
    const int error = errno;
    ::munmap(at, bytes);
    errno = error;
    return nullptr;
  }
  ::madvise(at, bytes, MADV_HUGEPAGE);  // a wish
  return at;
}

int populate(std::byte* at, size_t bytes) {
  if (::madvise(at, bytes, MADV_POPULATE_WRITE) == 0) return 0;
  return errno == EFAULT ? ENOSPC : errno;
}

/// One small page in each 2 MiB, every time another: where pages are dealt out to NUMA nodes by turns, it says which
/// node the huge page comes from.
int populate_huge(int fd, size_t offset, std::byte* at, size_t bytes, bool& refused) {
  for (size_t done = 0; done < bytes; done += kHugePage) {
    const size_t turn = (offset + done) / kHugePage % (kHugePage / kSmallPage);
    if (::fallocate(fd, 0, static_cast<off_t>(offset + done + turn * kSmallPage), kSmallPage) != 0) return errno;
  }
  if (bytes != 0 && ::madvise(at, bytes, MADV_COLLAPSE) != 0 && (errno == EINVAL || errno == ENOSYS)) refused = true;
  return populate(at, bytes);  // what fragmented memory left out, too
}

}  // namespace ellm::shm
