// Memory that is written once, then sealed, and found again by the process that comes next: repacked weights. Its life:
//
//     make ──► written by its owner, by nobody's name ──seal──► read-only for good ──► found by a later process, or removed
//               └─ the process ends: the memory is gone
//
//   anonymous   a memfd; seal() has the kernel refuse every later write, size and hole. Outlives the process in
//   somebody
//               else's hands only (systemd's file-descriptor store).
//   named       an object in /dev/shm with mode 0600, which gets its name in seal(). The kernel does not keep its
//   user's
//               other processes from writing to it, so whoever finds one has to compare checks(). Locked while it is
//               used.
// The bytes: SealedHeaderData | data, from the second huge page on | a checksum for each piece of the data. Errors are
// std::system_error. One thread, but for populate().
#pragma once
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>

namespace ellm::shm {

/// Names of our objects in /dev/shm begin so; the user's number follows.
inline constexpr const char* kWeightsPrefix = "ellm-weights.";

inline constexpr uint64_t kSealedMagic = 0x3130574d6d6c6c65;  // "ellmMW01" in memory
inline constexpr uint32_t kSealedVersion = 1;
inline constexpr uint32_t kMostSealedFingerprintBytes = 944;

/// tests/shm/sealed_memory_test.cc holds every offset: raise kSealedVersion when one changes.
struct SealedHeaderData {
  std::atomic<uint64_t> magic;  // stored last (release): what has it is complete
  uint32_t version;
  uint32_t fingerprint_bytes;
  uint64_t object_bytes, data_offset, data_bytes, checks_offset, check_count;
  uint64_t digest;  // XXH3-64 of the header with this field and the magic 0
  char pad[16];
  char fingerprint[kMostSealedFingerprintBytes];
};
static_assert(sizeof(SealedHeaderData) == 1024);

struct SealedOptions {
  std::string name = {};         // of an object in /dev/shm; empty: anonymous
  int fd = -1;                   // find(): a memfd that an earlier process sealed; taken over or closed
  std::string fingerprint = {};  // of what stands in the data
  size_t bytes = 0;              // of data
  size_t checks = 0;             // pieces that have a checksum
};

class SealedMemory {
 public:
  /// What an earlier process left, if it is complete and what these options want; then it is mapped, read-only.
  /// Otherwise `refused` says what is wrong with it, if there is anything, and it is removed. EBUSY: another process
  /// has it.
  static std::optional<SealedMemory> find(const SealedOptions& options, std::string& refused);
  /// Fresh memory to be written; populate() it first.
  static SealedMemory make(const SealedOptions& options);
  /// The object goes with its last user.
  static void remove(const std::string& name);

  SealedMemory(SealedMemory&& other) noexcept;
  SealedMemory& operator=(SealedMemory&&) = delete;
  ~SealedMemory();

  std::byte* data() const;  // at a huge page's border; read-only once it is sealed
  size_t bytes() const { return options_.bytes; }
  int fd() const { return fd_; }
  /// By piece. To be filled in before it is sealed.
  std::span<uint64_t> checks() const;
  /// Whether the kernel vouches for every byte.
  bool immutable() const { return options_.name.empty(); }

  /// Puts memory behind bytes [first, end) of data(), behind the checks with the last of them, in huge pages where the
  /// kernel has any: also where it does not hand them out for shared memory by itself. Returns an errno or 0. Any
  /// thread; ranges may have huge pages in common.
  int populate(size_t first, size_t end);
  /// Whether populate() has found that this kernel makes none for us.
  bool no_huge_pages() const { return no_huge_pages_.load(std::memory_order_relaxed); }

  /// Complete: from here on nobody writes, and a later process may find it. EEXIST: the name has come to be taken.
  void seal();

 private:
  SealedMemory(const SealedOptions& options, int fd);
  void map(int protection);

  SealedOptions options_;
  enum class HugePageState : uint8_t { untouched, in_work, populated };
  int populate_page(size_t page);

  size_t object_bytes_, checks_offset_;
  int fd_;
  std::byte* base_ = nullptr;
  std::atomic<bool> no_huge_pages_ = false;
  std::unique_ptr<std::atomic<HugePageState>[]> states_;  // of fresh memory, by huge page behind the header's
};

}  // namespace ellm::shm
