// The KV segment of one loaded model: a header, a record per page and the pages' payload in shared memory, and the
// changes of a page's state. One writer: the engine thread calls everything here. Which page holds which prefix, and
// who uses it, is page_store.h; the bytes and the states are laid down in page_record.h.
#pragma once
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>

#include "shm/geometry.h"
#include "shm/page_key.h"

namespace ellm::shm {

struct PageRecordData;

using PageId = uint32_t;
inline constexpr PageId kNoPage = ~PageId{0};

struct StoreOptions {
  PageGeometry geometry;
  uint32_t pages = 0;            // of a new segment
  std::string fingerprint = {};  // what the pages' bytes depend on (weights digest, tokenizer, RoPE, KV type, versions)
  bool lock = false;             // pages stay in memory once they are there (mlock); failure is reported by locked()
  // Survival: see segment.h.
  std::string name = {};                       // of an object in /dev/shm; empty: anonymous
  int fd = -1;                                 // a memfd that an earlier process filled; taken over or closed
  uint32_t least_pages = 0, most_pages = ~0u;  // that a segment may have to be taken over
};

class KvPages {
 public:
  /// Takes over the segment that an earlier process left, where there is one that fits: its sealed pages stay, all
  /// others are free. Otherwise frees that and makes a new one. Its memory is taken page by page, when a page is first
  /// allocated. Throws std::system_error: bad sizes, or more than the machine has; EBUSY: another process has the
  /// segment.
  static std::unique_ptr<KvPages> create(const StoreOptions& options);
  ~KvPages();

  const PageGeometry& geometry() const;
  uint32_t total_pages() const;
  uint32_t free_pages() const;
  uint32_t populated_pages() const;  // that have memory; it is kept when they are free again
  bool locked() const;
  bool taken_over() const;
  /// Why an earlier process's segment was not taken over; empty where there was none, or where it was.
  const std::string& refused() const;
  /// An anonymous segment lives as long as somebody holds this.
  int fd() const;

  /// A page in state `filling`, zeroed records, payload as it was. Absent when none is free, or when there is no memory
  /// behind the next one (its number then stays free).
  std::optional<PageId> allocate();
  /// Gives a page back, filling or sealed.
  void release(PageId page);
  /// filling → sealed: the K and V of `tokens` (1 … kPageTokens), which follow those of the page with key `parent`, are
  /// complete, and are never written again.
  void seal(PageId page, uint64_t name_space, const PageKey& parent, std::span<const uint32_t> tokens,
            uint64_t last_use, std::optional<uint64_t> checksum = {});  // of the payload, if it is known
  /// When a sealed page was used last, in nanoseconds since 1970; of two uses the later one has more.
  void touch(PageId page, uint64_t last_use);
  /// That a sealed page is not to be given up.
  void set_pinned(PageId page, bool pinned);
  /// The K and V of the first `tokens` tokens, from one page to another.
  void copy(PageId from, PageId to, uint32_t tokens);

  /// Whether the payload of a sealed page is what was sealed; of one that an earlier process sealed, when this one took
  /// it over or later.
  bool intact(PageId page) const;

  const PageRecordData& record(PageId page) const;

  std::byte* payload(PageId page);
  const std::byte* payload(PageId page) const;

 private:
  struct Impl;
  explicit KvPages(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

}  // namespace ellm::shm
