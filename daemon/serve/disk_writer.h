// The thread that writes to the disk, behind the requests and at a bounded pace, and removes what is beyond the budget.
//
// What is written. Keys and values cost 3 to 17 MB for each second of prefill (measured: qwen-1.5b 2.7, smollm2 16.6
// MB/s on 2 threads), up to a terabyte a day, and most one-time prompts are never seen again. So each page is written
// at most once, when its text has rested; and a day writes at most what the budget holds: an allowance that fills
// within a day. While more than half of it is left all pages are written, then only those that a second request has
// used.
#pragma once
#include <atomic>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <string>
#include <thread>
#include <vector>

#include "daemon/serve/disk_catalog.h"
#include "daemon/serve/disk_queue.h"
#include "shm/kv_pages.h"

namespace ellm::serve {

/// Pages on their way to the disk: the engine thread copies them here, the tier has them until it is not `busy` any
/// more.
struct DiskWrite {
  std::shared_ptr<DiskModel> model;
  shm::DiskRun run;
  std::unique_ptr<std::byte[]> payload;
  std::atomic<bool> busy{false};
  bool unwanted = false;  // erased meanwhile; the catalog's mutex
  DiskWrite* next = nullptr;
};

class DiskWriter {
 public:
  explicit DiskWriter(DiskCatalog& catalog);
  ~DiskWriter();
  DiskWriter(const DiskWriter&) = delete;
  DiskWriter& operator=(const DiskWriter&) = delete;

  /// These consecutive pages of a text have been used: `missing[i]` says which the disk does not have.
  void note_use(DiskModel& model, const shm::KvPages& kv, std::span<const shm::PageId> pages,
                std::vector<uint8_t>& missing);
  /// Whether pages should be written now that have been used again, or once only.
  bool wants(bool used_again);
  void submit(DiskWrite& write);
  /// Waits until it is not busy.
  bool await(const DiskWrite& write, Clock::time_point until);
  /// Stops pacing: the daemon ends.
  void hurry();
  /// As DiskTier::erase.
  void erase(const std::string& name_prefix, std::optional<uint64_t> name_space);
  /// Returns when the thread does not work for it any more.
  void withdraw(const DiskWrite& write);

 private:
  double daily_bytes() const;
  void loop();
  void remove_erased(std::unique_lock<std::mutex>& lock);
  void store_uses(std::unique_lock<std::mutex>& lock);
  void make_room(std::unique_lock<std::mutex>& lock, uint64_t bytes, uint64_t index_bytes);
  void write(std::unique_lock<std::mutex>& lock, DiskWrite& write);
  void write_whole_pages(std::unique_lock<std::mutex>& lock, DiskWrite& write);
  int write_file(const DiskWrite& write, std::span<const std::byte> header, const std::string& name);
  void pace(uint64_t bytes, Clock::time_point since);

  DiskCatalog& catalog_;
  // Guarded by the catalog's mutex.
  bool hurry_ = false;
  std::vector<std::shared_ptr<DiskFile>> erased_;  // that are not removed yet
  DiskQueue<DiskWrite> queue_;
  DiskWrite* being_written_ = nullptr;
  double allowance_bytes_;  // that may be written
  Clock::time_point allowance_time_ = Clock::now();
  std::thread thread_;
};

}  // namespace ellm::serve
