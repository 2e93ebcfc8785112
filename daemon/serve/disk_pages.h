// A model's pages and the disk, as the engine thread sees them: what a request's prompt has there and what comes of
// reading it, and which texts go there. Never waits for the disk, but for flush(); allocates nothing after
// construction.
//
//   reading   plan ──start──► the tier reads into the pages ──► settled ──take──► the slot is free
//                                       └── abandon: the pages are the slot's until the tier has stopped; tend() frees them
//   writing   a request ends ──► its text rests in a ring ──► tend() copies the pages that the disk does not have, a little
//             at a time, into a buffer that the tier writes
#pragma once
#include <atomic>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "daemon/serve/disk_tier.h"
#include "shm/page_store.h"

namespace ellm::serve {

class DiskPages {
 public:
  /// At most `fetches` requests wait for the disk together. `wake`: the engine has something to do. Null: there is no
  /// memory for it, as the tier has said.
  static std::unique_ptr<DiskPages> make(std::shared_ptr<DiskTier> tier, const std::string& fingerprint,
                                         shm::KvPages& kv, uint32_t fetches, std::function<void()> wake);
  /// What it takes, but for some 60 bytes a page of `kv`.
  static uint64_t memory_bytes(const shm::PageGeometry& geometry, uint32_t fetches);
  ~DiskPages();
  DiskPages(const DiskPages&) = delete;
  DiskPages& operator=(const DiskPages&) = delete;

  /// Of memory_bytes(), what has no memory behind it yet. Any thread.
  uint64_t promised_bytes() const { return (most_written_ - touched_.load(std::memory_order_relaxed)) * page_bytes_; }

  /// What is on disk has not been listed yet, but will be in a moment.
  bool is_looking() const;
  /// What is on disk behind a page of `tokens`, if reading it is faster than computing it (`known`: of the first page's
  /// tokens, without the disk). Null: nothing to read, or all slots are taken. The caller adds pages to hold it.
  DiskFetch* plan(uint64_t name_space, const shm::PageKey& parent, std::span<const uint32_t> tokens, uint32_t known,
                  uint32_t most_pages);
  /// Reads as many places as there are pages; with none the slot is free again.
  void start(DiskFetch& fetch);
  /// The reader is done with it: `done` pages are whole. It is told to stop where computing would have been faster.
  bool settled(DiskFetch& fetch);
  /// It was told to stop long ago: the disk hangs.
  bool hangs(const DiskFetch& fetch) const;
  void give_back(DiskFetch& fetch);
  /// Nobody waits for it any more.
  void abandon(DiskFetch& fetch);

  /// `rows` of a prompt were computed in a step.
  void computed(uint32_t rows, double step_ms);

  /// A text ends with this sealed page; `used_again`: its first pages that a request found computed.
  void ended(shm::PageId leaf, uint32_t used_again);
  /// Work that is due. When to come again; absent: when woken.
  std::optional<Clock::time_point> tend(shm::PageStore& store, Clock::time_point now, bool hurry = false);
  /// What the model has on disk of a namespace, or of all, goes.
  void erase(std::optional<uint64_t> name_space) { tier_->erase(model_->name_prefix, name_space); }
  /// At the engine's end: writes what waits, until then.
  void flush(shm::PageStore& store, Clock::time_point until);

 private:
  struct Text {
    shm::PageId leaf;
    shm::PageKey key;
    Clock::time_point due;
    uint32_t used_again;
  };

  DiskPages(std::shared_ptr<DiskTier> tier, const std::string& fingerprint, shm::KvPages& kv, uint32_t fetches,
            std::function<void()> wake);
  void begin(const shm::PageStore& store, const Text& text);
  bool copy_pages(bool hurry);
  void copy_page(size_t at);
  void submit();
  bool is_same(size_t at) const;
  void release_orphans(shm::PageStore& store);

  const std::shared_ptr<DiskTier> tier_;
  shm::KvPages& kv_;
  const Clock::time_point attached_ = Clock::now();
  const uint64_t page_bytes_;
  const uint32_t most_fetched_, most_written_;  // pages of a fetch, of a file
  std::vector<std::unique_ptr<DiskFetch>> fetches_;
  double rows_per_second_ = 0;  // of prompts, as measured; 0: not yet

  std::vector<Text> ring_;  // texts that rest, the first at head_
  size_t head_ = 0, resting_ = 0;
  // The text that is being copied: its pages from the root, their keys, which of them the disk does not have.
  std::vector<shm::PageId> chain_;
  std::vector<shm::PageKey> keys_;
  std::vector<uint8_t> missing_;
  size_t at_ = 0;
  DiskWrite write_;
  std::atomic<uint32_t> touched_{0};  // pages of its payload that have been filled once
  bool submitted_ = false;            // what stands in write_ has been the tier's
  std::shared_ptr<DiskModel> model_;  // the tier's; made last, when nothing can fail any more
};

}  // namespace ellm::serve
