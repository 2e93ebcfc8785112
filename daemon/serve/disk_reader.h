// The thread that reads from the disk: first which files there are and what is in those of a loaded model, then the
// pages that requests wait for, these before all else. It knows how fast the disk is, so that nobody waits for it who
// would have computed sooner.
#pragma once
#include <atomic>
#include <memory>
#include <mutex>
#include <span>
#include <thread>
#include <vector>

#include "daemon/serve/disk_catalog.h"
#include "daemon/serve/disk_queue.h"
#include "shm/kv_pages.h"

namespace ellm::serve {

/// Pages on their way from the disk. The engine thread fills it in and has it back when it is `finished`.
struct DiskFetch {
  std::shared_ptr<DiskModel> model;
  std::vector<DiskPlace> places;           // in the order of the text
  std::vector<shm::PageId> pages;          // for them; the engine thread's
  std::vector<std::byte*> payloads;        // of these
  Clock::time_point started{}, give_up{};  // computing would have taken until then
  std::atomic<uint32_t> done{0};           // pages that are whole, the first ones
  std::atomic<bool> abandoned{false}, finished{false};
  bool taken = false, orphan = false;  // engine thread: the slot is in use; by nobody who waits
  DiskFetch* next = nullptr;           // in the queue
};

class DiskReader {
 public:
  explicit DiskReader(DiskCatalog& catalog);
  ~DiskReader();
  DiskReader(const DiskReader&) = delete;
  DiskReader& operator=(const DiskReader&) = delete;

  /// Adds to a fetch what is on disk behind `parent` of `tokens`, `most` pages at the most. The tokens that it has.
  uint32_t plan(DiskFetch& fetch, uint64_t name_space, const shm::PageKey& parent, std::span<const uint32_t> tokens,
                uint32_t most) const;
  /// Whether so many bytes are read before `seconds` have passed, as far as is known.
  bool reads_within(uint64_t bytes, double seconds) const;
  void submit(DiskFetch& fetch);
  /// A fetch has taken too long with what it has done so far.
  void note_slow(const DiskFetch& fetch);
  /// Returns when nothing of the model is read any more.
  void withdraw(const DiskModel& model, std::span<const std::unique_ptr<DiskFetch>> fetches);

 private:
  void loop();
  void turn(std::unique_lock<std::mutex>& lock);
  void survey(std::unique_lock<std::mutex>& lock);
  bool look_at_one(std::unique_lock<std::mutex>& lock);
  void list(DiskModel& model);
  void looked_at_all(std::unique_lock<std::mutex>& lock, DiskModel& model);
  void read(std::unique_lock<std::mutex>& lock, DiskFetch& fetch);
  uint32_t read_pages(DiskFetch& fetch, double& seconds) const;
  void drop_damaged(std::unique_lock<std::mutex>& lock, std::shared_ptr<DiskFile> file);

  DiskCatalog& catalog_;
  // Guarded by the catalog's mutex.
  DiskQueue<DiskFetch> queue_;
  DiskFetch* reading_ = nullptr;
  uint64_t queued_bytes_ = 0;         // to be read
  double read_bytes_per_second_ = 0;  // as measured; 0: not yet
  Clock::time_point measured_{};
  std::thread thread_;
};

}  // namespace ellm::serve
