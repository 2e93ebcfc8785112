// See disk_file.h.
#include "shm/disk_file.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>
#include <xxhash.h>

#include <algorithm>
#include <cerrno>
#include <charconv>
#include <cstdio>
#include <cstring>

namespace ellm::shm {
namespace {

constexpr std::string_view kSuffix = ".kv";
constexpr size_t kFingerprintDigits = 16, kKeyDigits = 32;

std::string hex(uint64_t value, int digits) {
  char text[17];
  std::snprintf(text, sizeof text, "%0*llx", digits, static_cast<unsigned long long>(value));
  return text;
}

/// Of a header with so many pages and so long a fingerprint.
uint64_t payload_offset_of(uint64_t pages, uint64_t fingerprint_bytes) {
  const uint64_t bytes = sizeof(DiskFileHeaderData) + pages * sizeof(DiskPageRecordData) + fingerprint_bytes;
  return (bytes + kDiskBlock - 1) / kDiskBlock * kDiskBlock;
}

/// All bytes before the payload. The field itself counts as zeros.
uint64_t header_checksum(std::span<const std::byte> bytes) {
  DiskFileHeaderData header;
  std::memcpy(&header, bytes.data(), sizeof header);
  header.checksum = 0;
  const uint64_t of_rest = XXH3_64bits(bytes.data() + sizeof header, bytes.size() - sizeof header);
  return XXH3_64bits_withSeed(&header, sizeof header, of_rest);
}

bool read_all(int fd, std::span<std::byte> to, uint64_t offset) {
  while (!to.empty()) {
    const ssize_t n = pread(fd, to.data(), to.size(), static_cast<off_t>(offset));
    if (n < 0 && errno == EINTR) continue;
    if (n <= 0) return false;
    to = to.subspan(static_cast<size_t>(n));
    offset += static_cast<uint64_t>(n);
  }
  return true;
}

bool same_shape(const DiskFileHeaderData& header, const PageGeometry& g) {
  return header.layers == g.layers && header.kv_heads == g.kv_heads && header.head_dim == g.head_dim &&
         header.k_type == static_cast<uint8_t>(g.k_type) && header.v_type == static_cast<uint8_t>(g.v_type) &&
         header.page_bytes == g.page_bytes();
}

/// False: a record is not the hash of itself and of the one before it.
bool read_records(const DiskFileHeaderData& header, const std::byte* at, DiskRun& run) {
  run = {header.name_space, {header.parent_key[0], header.parent_key[1]}, header.depth, {}};
  PageKey parent = run.parent;
  for (uint32_t i = 0; i < header.pages; ++i, at += sizeof(DiskPageRecordData)) {
    DiskPageRecordData record;
    std::memcpy(&record, at, sizeof record);
    const bool last = i + 1 == header.pages;
    if (record.n_tokens == 0 || record.n_tokens > kPageTokens || (!last && record.n_tokens != kPageTokens))
      return false;
    DiskPage& page = run.pages.emplace_back();
    page.key = {record.key[0], record.key[1]};
    page.checksum = record.checksum;
    page.n_tokens = record.n_tokens;
    std::copy_n(record.tokens, kPageTokens, page.tokens.begin());
    if (page_key(parent, run.name_space, std::span(page.tokens).first(page.n_tokens)) != page.key) return false;
    parent = page.key;
  }
  return true;
}

}  // namespace

std::string disk_file_prefix(const DiskFormat& format) {
  return hex(XXH3_64bits(format.fingerprint.data(), format.fingerprint.size()), kFingerprintDigits) + "-";
}

std::string disk_file_name(const DiskFormat& format, uint64_t name_space, const PageKey& first) {
  return disk_file_prefix(format) + hex(name_space, 1) + "-" + hex(first.high, 16) + hex(first.low, 16) +
         std::string(kSuffix);
}

std::optional<uint64_t> namespace_in(std::string_view name) {
  const auto all_hex = [](std::string_view text) {
    return !text.empty() && text.find_first_not_of("0123456789abcdef") == text.npos;
  };
  const size_t tail = 1 + kKeyDigits + kSuffix.size();
  if (name.size() < kFingerprintDigits + 2 + tail || !name.ends_with(kSuffix)) return std::nullopt;
  const std::string_view fingerprint = name.substr(0, kFingerprintDigits);
  const std::string_view middle = name.substr(kFingerprintDigits, name.size() - kFingerprintDigits - tail);
  const std::string_view last = name.substr(name.size() - tail, 1 + kKeyDigits);
  if (!all_hex(fingerprint) || middle[0] != '-' || !all_hex(middle.substr(1)) || last[0] != '-' ||
      !all_hex(last.substr(1)))
    return std::nullopt;
  uint64_t name_space = 0;
  const auto end = middle.data() + middle.size();
  const auto [at, error] = std::from_chars(middle.data() + 1, end, name_space, 16);
  if (error != std::errc() || at != end) return std::nullopt;
  return name_space;
}

std::vector<std::byte> disk_header(const DiskFormat& format, const DiskRun& run) {
  const PageGeometry& g = format.geometry;
  const auto pages = static_cast<uint32_t>(run.pages.size());
  DiskFileHeaderData header{};
  header.magic = kDiskMagic;
  header.layout_version = kDiskLayoutVersion;
  header.pages = pages;
  header.payload_offset = payload_offset_of(pages, format.fingerprint.size());
  header.page_bytes = g.page_bytes();
  header.name_space = run.name_space;
  header.parent_key[0] = run.parent.low, header.parent_key[1] = run.parent.high;
  header.depth = run.depth;
  header.layers = g.layers, header.kv_heads = g.kv_heads, header.head_dim = g.head_dim;
  header.k_type = static_cast<uint8_t>(g.k_type), header.v_type = static_cast<uint8_t>(g.v_type);
  header.fingerprint_bytes = static_cast<uint32_t>(format.fingerprint.size());
  std::vector<std::byte> bytes(header.payload_offset);
  std::byte* at = bytes.data() + sizeof header;
  for (const DiskPage& page : run.pages) {
    DiskPageRecordData record{{page.key.low, page.key.high}, page.checksum, page.n_tokens, 0, {}};
    std::copy(page.tokens.begin(), page.tokens.end(), record.tokens);
    std::memcpy(at, &record, sizeof record);
    at += sizeof record;
  }
  std::memcpy(at, format.fingerprint.data(), format.fingerprint.size());
  std::memcpy(bytes.data(), &header, sizeof header);
  header.checksum = header_checksum(bytes);
  std::memcpy(bytes.data(), &header, sizeof header);
  return bytes;
}

DiskFault read_disk_header(int fd, const DiskFormat& format, DiskRun& run, uint64_t& payload_offset) {
  struct stat status{};
  DiskFileHeaderData header;
  if (fstat(fd, &status) != 0 || !S_ISREG(status.st_mode)) return DiskFault::unreadable;
  const auto file_bytes = static_cast<uint64_t>(status.st_size);
  if (file_bytes < sizeof header) return DiskFault::damaged;
  if (!read_all(fd, std::as_writable_bytes(std::span(&header, 1)), 0)) return DiskFault::unreadable;
  if (header.magic != kDiskMagic) return DiskFault::damaged;
  if (header.layout_version != kDiskLayoutVersion) return DiskFault::other_layout;
  if (header.pages == 0 || header.pages > kMostDiskPages || header.fingerprint_bytes > kMostDiskFingerprintBytes ||
      header.payload_offset != payload_offset_of(header.pages, header.fingerprint_bytes) ||
      header.payload_offset > file_bytes || (file_bytes - header.payload_offset) / header.pages != header.page_bytes ||
      (file_bytes - header.payload_offset) % header.pages != 0)
    return DiskFault::damaged;
  std::vector<std::byte> bytes(header.payload_offset);
  if (!read_all(fd, bytes, 0)) return DiskFault::unreadable;
  if (std::memcmp(&header, bytes.data(), sizeof header) != 0 || header_checksum(bytes) != header.checksum)
    return DiskFault::damaged;
  const std::byte* fingerprint = bytes.data() + sizeof header + header.pages * sizeof(DiskPageRecordData);
  if (header.fingerprint_bytes != format.fingerprint.size() ||
      std::memcmp(fingerprint, format.fingerprint.data(), format.fingerprint.size()) != 0 ||
      !same_shape(header, format.geometry))
    return DiskFault::foreign;
  DiskRun there;
  if (!read_records(header, bytes.data() + sizeof header, there)) return DiskFault::damaged;
  run = std::move(there);
  payload_offset = header.payload_offset;
  return DiskFault::none;
}

bool read_disk_payload(int fd, uint64_t offset, std::span<std::byte> to, uint64_t checksum) {
  return read_all(fd, to, offset) && disk_checksum(to) == checksum;
}

uint64_t disk_checksum(std::span<const std::byte> payload) { return XXH3_64bits(payload.data(), payload.size()); }

DiskFileWriter::DiskFileWriter(int directory, std::string name)
    : directory_(directory), name_(std::move(name)), temporary_(std::string(kDiskTemporary) + name_) {}

DiskFileWriter::~DiskFileWriter() {
  if (fd_ < 0) return;
  close(fd_);
  unlinkat(directory_, temporary_.c_str(), 0);
}

int DiskFileWriter::open() {
  unlinkat(directory_, temporary_.c_str(), 0);
  fd_ = openat(directory_, temporary_.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, 0600);
  return fd_ < 0 ? errno : 0;
}

int DiskFileWriter::write(std::span<const std::byte> bytes) {
  while (!bytes.empty()) {
    const ssize_t n = ::write(fd_, bytes.data(), bytes.size());
    if (n < 0 && errno == EINTR) continue;
    if (n < 0) return errno;
    if (n == 0) return ENOSPC;
    bytes = bytes.subspan(static_cast<size_t>(n));
  }
  return 0;
}

int DiskFileWriter::publish() {
  if (fdatasync(fd_) != 0) return errno;
  if (renameat(directory_, temporary_.c_str(), directory_, name_.c_str()) != 0) return errno;
  close(fd_);
  fd_ = -1;
  return 0;
}

}  // namespace ellm::shm
