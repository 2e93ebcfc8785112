// Huge pages for shared memory. Reading through 4 KiB pages costs a third of the bandwidth, and most kernels give
// shared memory nothing else (/sys/kernel/mm/transparent_hugepage/shmem_enabled is "never" unless the administrator has
// changed it). MADV_COLLAPSE (Linux 6.1) makes a huge page of what stands in 2 MiB whatever that file says; one small
// page that is there already is all that it asks for (best one that nobody has mapped: else all cores are interrupted
// twice, a quarter of the time), the holes around it become zeroes. The huge page belongs to the
// object, not to the mapping: who maps it later gets it with one page fault. Internal to shm/; any thread.
#pragma once
#include <cstddef>

namespace ellm::shm {

inline constexpr size_t kHugePage = size_t{2} << 20;
inline constexpr size_t kSmallPage = 4096;

constexpr size_t round_up_to(size_t bytes, size_t unit) { return (bytes + unit - 1) / unit * unit; }

/// Maps a file, shared, from its beginning at a huge page's border; in the place of an earlier mapping `at`, if not
/// null. Excluded from core dumps. Null: errno says why.
std::byte* map_shared(int fd, size_t bytes, int protection, std::byte* at = nullptr);

/// Puts memory behind whole small pages of a shared mapping. Returns an errno or 0: ENOSPC where the file system is
/// full, which the kernel calls a fault.
int populate(std::byte* at, size_t bytes);

/// Puts memory behind `bytes` at `at`, where the file is mapped from `offset` on, all multiples of a huge page, in huge
/// pages where the kernel has any. What stands there stays. Returns an errno or 0; `refused` becomes true where this
/// kernel makes no huge pages of shared memory.
int populate_huge(int fd, size_t offset, std::byte* at, size_t bytes, bool& refused);

}  // namespace ellm::shm
