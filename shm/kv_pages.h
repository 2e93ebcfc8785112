// The KV store of one loaded model: a segment of shared memory with a header, a record per page and the pages' payload,
// and the allocation of its pages. One writer: the engine thread calls everything here. (The prefix index, sealing and
// survival of restarts extend the records; their states are laid down in page_record.h.)
#pragma once
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>

#include "shm/geometry.h"

namespace ellm::shm {

using PageId = uint32_t;

struct StoreOptions {
  PageGeometry geometry;
  uint32_t pages = 0;
  std::string fingerprint;   // what the pages' bytes depend on (weights digest, tokenizer, RoPE, KV type, versions)
  bool lock = false;         // pages stay in memory once they are there (mlock); failure is reported by locked()
};

class KvPages {
 public:
  /// Creates the segment (a sealed-size memfd, excluded from core dumps). Its memory is taken page by page, when a page
  /// is first allocated. Throws std::system_error: bad sizes, or more than the machine has.
  static std::unique_ptr<KvPages> create(const StoreOptions& options);
  ~KvPages();

  const PageGeometry& geometry() const;
  uint32_t total_pages() const;
  uint32_t free_pages() const;
  uint32_t populated_pages() const;  // that have memory; it is kept when they are free again
  bool locked() const;

  /// A page in state `filling`, zeroed records, payload as it was. Absent when none is free, or when there is no memory
  /// behind the next one (its number then stays free).
  std::optional<PageId> allocate();
  /// Gives a page back.
  void release(PageId page);

  std::byte* payload(PageId page);
  const std::byte* payload(PageId page) const;

 private:
  struct Impl;
  explicit KvPages(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

}  // namespace ellm::shm
