// The bytes of a KV segment, as they stand in shared memory and outlive the process that wrote them:
//   SegmentHeaderData | PageRecordData[pages] | payload[pages]          (offsets in the header)
// Data only; what is done with them is kv_pages.h. Only the daemon's engine thread writes. Integers are in this
// machine's order: a segment never leaves it. tests/shm/layout_test.cc holds every offset: raise kLayoutVersion when
// one changes.
#pragma once
#include <atomic>
#include <cstddef>
#include <cstdint>

#include "shm/geometry.h"

namespace ellm::shm {

inline constexpr uint64_t kSegmentMagic = 0x3130564b6d6c6c65;  // "ellmKV01" in memory
inline constexpr uint32_t kLayoutVersion = 2;
inline constexpr uint32_t kMaxFingerprintBytes = 3072;

/// Who may take a segment over: a process with the same layout version, fingerprint and geometry, nobody else. The
/// magic is stored last (release) when a segment is made, so one that a crash left half made is not taken for a whole
/// one.
struct SegmentHeaderData {
  std::atomic<uint64_t> magic;
  uint32_t layout_version;
  uint32_t record_bytes;  // sizeof(PageRecordData)
  uint64_t epoch;         // 1 for the process that made the segment, one more for each that took it over
  uint64_t segment_bytes;
  uint64_t records_offset;  // of PageRecordData[pages]
  uint64_t payload_offset;  // of pages * page_bytes
  uint64_t page_bytes;
  uint32_t pages;
  uint32_t layers, kv_heads, head_dim;
  uint8_t k_type, v_type;  // KvType
  uint8_t reserved[2];
  uint32_t fingerprint_bytes;
  uint8_t more_reserved[48];
  char fingerprint[kMaxFingerprintBytes];
};

/// A page's life. All changes are the engine thread's; each is one store to `state`.
///
///            allocate                     seal: release, after payload,
///            (record cleared before)      checksum and all other fields
///     free ───────────────────► filling ───────────────────────────────► sealed
///      ▲                           │                                        │
///      │   release; a crash: the   │                                        │ evicted, or dropped with
///      └── next process frees it ──┴────────────────────────────────────────┘ a parent that is gone
///
/// - free: nothing else in the record or the payload means anything.
/// - filling: one sequence's, rows are being added. n_tokens and tokens are not kept up to date; a process that finds
///   such a page after a crash drops it.
/// - sealed: never written again but for last_use and pinned, until it is free. It has 32 tokens, or fewer where a
///   request ended. Whoever reads `sealed` with acquire reads the whole page.
/// The state is 0 for free, so that the zeroes of a new segment are free pages.
enum class PageState : uint32_t { free = 0, filling = 1, sealed = 2 };

/// One page. The first cache line is what looking for a prefix reads, the other two are read to confirm a match.
struct PageRecordData {
  std::atomic<PageState> state;
  uint16_t n_tokens;       // 0 … kPageTokens
  uint16_t pinned;         // 1: somebody pinned the prefix that ends here; not evicted
  uint64_t name_space;     // below 2^32 a uid's own, above one that the configuration names
  uint64_t key[2];         // XXH3-128 of (parent key, tokens, namespace)
  uint64_t parent_key[2];  // zero at the root
  uint64_t checksum;       // XXH3-64 of the payload
  uint64_t last_use;       // nanoseconds since 1970, one more than the use before where the clock says less
  uint32_t tokens[kPageTokens];
};

}  // namespace ellm::shm
