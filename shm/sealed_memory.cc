// See sealed_memory.h.
#include "shm/sealed_memory.h"

#include <fcntl.h>
#include <sys/file.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>
#include <xxhash.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <new>
#include <system_error>
#include <utility>

#include "shm/huge_pages.h"

#ifndef MFD_NOEXEC_SEAL
#define MFD_NOEXEC_SEAL 0x0008U  // Linux 6.3
#endif
#ifndef F_SEAL_FUTURE_WRITE
#define F_SEAL_FUTURE_WRITE 0x0010
#endif

namespace ellm::shm {
namespace {

/// FUTURE_WRITE and not WRITE, under which kernels before 6.7 refuse shared mappings; our own writable one is gone by
/// then.
constexpr int kSeals = F_SEAL_FUTURE_WRITE | F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL;

[[noreturn]] void fail(int error, const std::string& what) {
  throw std::system_error(error, std::generic_category(), "weights in shared memory: " + what);
}

std::string path_of(const std::string& name) { return "/dev/shm/" + name; }

/// Closed unless it was taken.
struct Descriptor {
  explicit Descriptor(int fd) : fd(fd) {}
  Descriptor(const Descriptor&) = delete;
  ~Descriptor() {
    if (fd >= 0) ::close(fd);
  }
  int take() { return std::exchange(fd, -1); }
  int fd;
};

int open_memfd() {
  int fd = memfd_create("ellm-weights", MFD_CLOEXEC | MFD_ALLOW_SEALING | MFD_NOEXEC_SEAL);
  if (fd < 0 && errno == EINVAL) fd = memfd_create("ellm-weights", MFD_CLOEXEC | MFD_ALLOW_SEALING);
  if (fd < 0) fail(errno, "memfd_create");
  return fd;
}

/// Of /dev/shm, without a name: what a killed process leaves of it is nothing.
int open_unnamed() {
  const int fd = ::open("/dev/shm", O_TMPFILE | O_RDWR | O_CLOEXEC, 0600);
  if (fd < 0) fail(errno, "making an object in /dev/shm");
  return fd;
}

/// The named object, locked, or -1 where there is none.
int open_named(const std::string& name) {
  const std::string path = path_of(name);
  Descriptor object(::open(path.c_str(), O_RDONLY | O_NOFOLLOW | O_CLOEXEC | O_NONBLOCK));
  if (object.fd < 0 && errno == ENOENT) return -1;
  if (object.fd < 0) fail(errno, path);
  struct stat s{};
  if (::fstat(object.fd, &s) != 0) fail(errno, path);
  if (!S_ISREG(s.st_mode) || s.st_uid != ::geteuid() || (s.st_mode & 077) != 0)
    fail(EPERM, path + " is not this user's alone");
  if (::flock(object.fd, LOCK_EX | LOCK_NB) != 0)
    fail(errno == EWOULDBLOCK ? EBUSY : errno, path + " is another process's");
  return object.take();
}

uint64_t digest_of(const SealedHeaderData& header) {
  alignas(8) std::byte copy[sizeof header];
  std::memcpy(copy, static_cast<const void*>(&header), sizeof header);
  std::memset(copy + offsetof(SealedHeaderData, magic), 0, sizeof header.magic);
  std::memset(copy + offsetof(SealedHeaderData, digest), 0, sizeof header.digest);
  return XXH3_64bits(copy, sizeof copy);
}

void write_header(SealedHeaderData& header, const SealedOptions& options, size_t object_bytes, size_t checks_offset) {
  header.version = kSealedVersion;
  header.fingerprint_bytes = static_cast<uint32_t>(options.fingerprint.size());
  header.object_bytes = object_bytes;
  header.data_offset = kHugePage;
  header.data_bytes = options.bytes;
  header.checks_offset = checks_offset;
  header.check_count = options.checks;
  std::memcpy(header.fingerprint, options.fingerprint.data(), options.fingerprint.size());
  header.digest = digest_of(header);
}

/// In what a header differs from the one wanted; null: nothing.
const char* difference(const SealedHeaderData& header, const SealedHeaderData& wanted) {
  if (header.magic.load(std::memory_order_acquire) != kSealedMagic) return "it is not complete";
  if (header.version != kSealedVersion) return "its layout is another version's";
  if (header.digest != digest_of(header)) return "its header is damaged";
  if (header.fingerprint_bytes != wanted.fingerprint_bytes ||
      std::memcmp(header.fingerprint, wanted.fingerprint, sizeof wanted.fingerprint) != 0)
    return "they are another file's, or another layout's";
  return header.digest == wanted.digest ? nullptr : "its size is another";
}

/// Whether there is memory behind all of it from the data on.
bool is_whole(int fd, size_t object_bytes) {
  const auto first = static_cast<off_t>(kHugePage), end = static_cast<off_t>(object_bytes);
  return ::lseek(fd, first, SEEK_DATA) == first && ::lseek(fd, first, SEEK_HOLE) >= end;
}

}  // namespace

SealedMemory::SealedMemory(const SealedOptions& options, int fd) : options_(options), fd_(fd) {
  options_.fd = -1;
  checks_offset_ = kHugePage + round_up_to(options.bytes, kSmallPage);
  // Whole huge pages, but for what fits into a few small ones.
  const size_t rest = checks_offset_ - kHugePage + round_up_to(options.checks * sizeof(uint64_t), kSmallPage);
  object_bytes_ = kHugePage + (rest < kHugePage ? rest : round_up_to(rest, kHugePage));
}

SealedMemory::SealedMemory(SealedMemory&& other) noexcept
    : options_(std::move(other.options_)), object_bytes_(other.object_bytes_), checks_offset_(other.checks_offset_),
      fd_(std::exchange(other.fd_, -1)), base_(std::exchange(other.base_, nullptr)),
      no_huge_pages_(other.no_huge_pages_.load()), states_(std::move(other.states_)) {}

SealedMemory::~SealedMemory() {
  if (base_ != nullptr) ::munmap(base_, object_bytes_);
  if (fd_ >= 0) ::close(fd_);
}

std::byte* SealedMemory::data() const { return base_ + kHugePage; }

std::span<uint64_t> SealedMemory::checks() const {
  return {reinterpret_cast<uint64_t*>(base_ + checks_offset_), options_.checks};
}

/// In the place of an earlier mapping where there is one.
void SealedMemory::map(int protection) {
  std::byte* const at = map_shared(fd_, object_bytes_, protection, base_);
  if (at == nullptr) fail(errno, "mapping " + std::to_string(object_bytes_ >> 20) + " MiB");
  base_ = at;
}

std::optional<SealedMemory> SealedMemory::find(const SealedOptions& options, std::string& refused) {
  refused.clear();
  const int fd = options.fd >= 0 ? options.fd : options.name.empty() ? -1 : open_named(options.name);
  if (fd < 0) return std::nullopt;
  SealedMemory memory(options, fd);
  ::fcntl(fd, F_SETFD, FD_CLOEXEC);
  struct stat s{};
  const char* why = nullptr;
  SealedHeaderData header{}, wanted{};
  if (options.fingerprint.size() > sizeof wanted.fingerprint) fail(EINVAL, "the fingerprint is too long");
  write_header(wanted, options, memory.object_bytes_, memory.checks_offset_);
  if (options.fd >= 0 && (::fcntl(fd, F_GET_SEALS) & kSeals) != kSeals) why = "it is not sealed";
  else if (::pread(fd, static_cast<void*>(&header), sizeof header, 0) != sizeof header) why = "it is not complete";
  else if (why = difference(header, wanted); why != nullptr) {
  } else if (::fstat(fd, &s) != 0 || s.st_size != static_cast<off_t>(memory.object_bytes_)) why = "its size is another";
  else if (!is_whole(fd, memory.object_bytes_)) why = "a part of it is gone";
  if (why != nullptr) {
    refused = why;
    if (options.fd < 0) remove(options.name);
    return std::nullopt;
  }
  memory.map(PROT_READ);
  return memory;
}

SealedMemory SealedMemory::make(const SealedOptions& options) {
  if (options.fingerprint.size() > kMostSealedFingerprintBytes || options.bytes == 0) fail(EINVAL, "bad options");
  SealedMemory memory(options, options.name.empty() ? open_memfd() : open_unnamed());
  if (!options.name.empty() && ::flock(memory.fd_, LOCK_EX | LOCK_NB) != 0) fail(errno, "its lock");
  if (::ftruncate(memory.fd_, static_cast<off_t>(memory.object_bytes_)) != 0)
    fail(errno, "a size of " + std::to_string(memory.object_bytes_ >> 20) + " MiB");
  memory.map(PROT_READ | PROT_WRITE);
  memory.states_ = std::make_unique<std::atomic<HugePageState>[]>(memory.object_bytes_ / kHugePage);
  if (const int error = shm::populate(memory.base_, kSmallPage)) fail(error, "memory for its header");
  new (memory.base_) SealedHeaderData{};
  return memory;
}

void SealedMemory::remove(const std::string& name) { ::unlink(path_of(name).c_str()); }

/// The last may be a few small pages.
int SealedMemory::populate_page(size_t page) {
  const size_t first = page * kHugePage, bytes = std::min(kHugePage, object_bytes_ - kHugePage - first);
  if (bytes < kHugePage) return shm::populate(data() + first, bytes);
  bool refused = false;
  const int error = populate_huge(fd_, kHugePage + first, data() + first, bytes, refused);
  if (refused) no_huge_pages_.store(true, std::memory_order_relaxed);
  return error;
}

/// Ranges of two threads may share a huge page: one of them populates it, and neither writes to it before. (A page that
/// another thread has in hand is refused by the kernel, and what is written to before stays in small ones.)
int SealedMemory::populate(size_t first, size_t end) {
  const size_t all = object_bytes_ - kHugePage;
  end = end >= options_.bytes ? all : end;
  for (size_t page = first / kHugePage; page * kHugePage < end; ++page) {
    std::atomic<HugePageState>& state = states_[page];
    HugePageState seen = HugePageState::untouched;
    while (!state.compare_exchange_strong(seen, HugePageState::in_work) && seen != HugePageState::populated) {
      state.wait(HugePageState::in_work);
      seen = HugePageState::untouched;  // so it is again where there was no memory: whoever waited learns it himself
    }
    if (seen == HugePageState::populated) continue;
    const int error = populate_page(page);
    state = error == 0 ? HugePageState::populated : HugePageState::untouched;
    state.notify_all();
    if (error != 0) return error;
  }
  return 0;
}

void SealedMemory::seal() {
  auto& header = *std::launder(reinterpret_cast<SealedHeaderData*>(base_));
  write_header(header, options_, object_bytes_, checks_offset_);
  header.magic.store(kSealedMagic, std::memory_order_release);
  map(PROT_READ);
  if (options_.name.empty()) {
    if (::fcntl(fd_, F_ADD_SEALS, kSeals) != 0) fail(errno, "sealing it");
    return;
  }
  const std::string self = "/proc/self/fd/" + std::to_string(fd_);
  if (::linkat(AT_FDCWD, self.c_str(), AT_FDCWD, path_of(options_.name).c_str(), AT_SYMLINK_FOLLOW) != 0)
    fail(errno, "naming it " + path_of(options_.name));
}

}  // namespace ellm::shm
