// Pages on disk: a file holds a run of consecutive pages of one text, so that a long prefix is a few large reads.
//   DiskFileHeaderData | DiskPageRecordData[pages] | fingerprint | zeros to 4096 | payload[pages]
// A file is written under another name, flushed and then renamed: under its own name it is whole, or the disk has
// damaged it. It is never changed afterwards. Bytes and calls only; which files there are and who reads them:
// serve/disk_tier.h.
#pragma once
#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "shm/geometry.h"
#include "shm/page_key.h"

namespace ellm::shm {

inline constexpr uint64_t kDiskMagic = 0x3130444b6d6c6c65;  // "ellmKD01" in the file
inline constexpr uint32_t kDiskLayoutVersion = 1;
inline constexpr uint32_t kMostDiskPages = 64;  // of one file
inline constexpr uint64_t kDiskBlock = 4096;    // the payload begins at a multiple
inline constexpr uint32_t kMostDiskFingerprintBytes = 3072;

struct DiskFileHeaderData {
  uint64_t magic;
  uint32_t layout_version;
  uint32_t pages;
  uint64_t checksum;  // XXH3-64 of all before the payload, this field as 0
  uint64_t payload_offset;
  uint64_t page_bytes;
  uint64_t name_space;
  uint64_t parent_key[2];  // of the page before the first
  uint32_t depth;          // pages of the text before the first
  uint32_t layers, kv_heads, head_dim;
  uint8_t k_type, v_type;  // KvType
  uint8_t reserved[2];
  uint32_t fingerprint_bytes;
};

struct DiskPageRecordData {
  uint64_t key[2];
  uint64_t checksum;  // XXH3-64 of the payload, as in the segment
  uint32_t n_tokens;  // kPageTokens; the last page of a file may have fewer
  uint32_t reserved;
  uint32_t tokens[kPageTokens];
};

struct DiskPage {
  PageKey key;
  uint64_t checksum = 0;
  uint32_t n_tokens = 0;
  std::array<uint32_t, kPageTokens> tokens{};
};

/// Consecutive pages of one text.
struct DiskRun {
  uint64_t name_space = 0;
  PageKey parent;
  uint32_t depth = 0;
  std::vector<DiskPage> pages;
};

/// Whose pages a file may hold.
struct DiskFormat {
  PageGeometry geometry;
  std::string fingerprint;  // what the pages' bytes depend on; at most kMostDiskFingerprintBytes
};

/// "FINGERPRINT-NAMESPACE-KEY.kv": digest of the fingerprint, namespace, key of the first page, in hexadecimal digits.
std::string disk_file_name(const DiskFormat& format, uint64_t name_space, const PageKey& first);
/// What every name of the format's files begins with.
std::string disk_file_prefix(const DiskFormat& format);
/// The namespace in a name; absent: no name of such a file.
std::optional<uint64_t> namespace_in(std::string_view name);

/// All of a file before its payload.
std::vector<std::byte> disk_header(const DiskFormat& format, const DiskRun& run);

enum class DiskFault : uint8_t { none, unreadable, other_layout, damaged, foreign };

/// Reads and checks all before the payload, and the file's length. `run` and `payload_offset` are set where nothing is
/// wrong.
DiskFault read_disk_header(int fd, const DiskFormat& format, DiskRun& run, uint64_t& payload_offset);
/// One page's payload, checked. False: it could not be read, or is not what was written.
bool read_disk_payload(int fd, uint64_t offset, std::span<std::byte> to, uint64_t checksum);
/// The checksum of a payload.
uint64_t disk_checksum(std::span<const std::byte> payload);

/// A file on its way to the disk. Every call gives 0 or an errno; what was not published is removed.
class DiskFileWriter {
 public:
  /// `directory` is a descriptor.
  DiskFileWriter(int directory, std::string name);
  ~DiskFileWriter();
  DiskFileWriter(const DiskFileWriter&) = delete;
  DiskFileWriter& operator=(const DiskFileWriter&) = delete;

  int open();
  int write(std::span<const std::byte> bytes);
  /// Waits for the disk, then gives the file its name.
  int publish();

 private:
  int directory_, fd_ = -1;
  std::string name_, temporary_;
};

inline constexpr std::string_view kDiskTemporary = ".new-";  // begins the name of an unfinished file

}  // namespace ellm::shm
