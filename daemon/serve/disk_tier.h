// The disk under all models' prefixes: one directory within a byte budget, a thread that writes behind at a bounded
// pace and a thread that reads what a request waits for (so a read never waits for a flush). Everything here can fail
// without harm: what cannot be written is computed again one day, what cannot be read is computed now. The engine
// thread's side of a model is disk_pages.h.
//
// Locks: the tier's mutex, then whatever `wake` takes; nobody holds it while the disk is asked.
#pragma once
#include <atomic>
#include <chrono>
#include <condition_variable>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <string>
#include <thread>
#include <vector>

#include "daemon/serve/disk_index.h"
#include "shm/kv_pages.h"

namespace ellm::serve {

using Clock = std::chrono::steady_clock;

struct DiskOptions {
  std::string directory;  // made if need be; its parent, too
  uint64_t budget_bytes = 0;
  uint64_t write_bytes_per_second = 64u << 20;
  uint64_t bytes_per_day = 0;            // that are written; 0: as many as the budget
  bool read_always = false;              // whatever it takes: for tests, whose models compute at once
  std::chrono::milliseconds rest{5000};  // that a text is left alone before it is written: most go on at once
  std::function<void(const std::string&)> warn = [](const auto&) {}, note = [](const auto&) {};  // any thread
};

struct DiskCounters {
  uint64_t bytes = 0, budget_bytes = 0;
  uint64_t pages_written = 0, pages_read = 0, pages_damaged = 0, files_skipped = 0;
  bool writing = false;  // false: the disk is full or refused, see the log
  bool looking = false;  // at what an earlier process left
};

/// What the tier knows of a loaded model. Guarded by the tier's mutex, but for what never changes.
struct DiskModel {
  shm::DiskFormat format;
  uint64_t page_bytes = 0;
  std::string name_prefix;         // of its files
  std::function<void()> wake;      // the engine: something has been read or written
  std::atomic<bool> known{false};  // all of its files have been looked at
  DiskTexts texts;
  bool listed = false;
  std::vector<std::string> to_look_at;
  uint32_t skipped[5] = {};  // files by DiskFault
};

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

/// Pages on their way to the disk: the engine thread copies them here, the tier has them until it is not `busy` any
/// more.
struct DiskWrite {
  std::shared_ptr<DiskModel> model;
  shm::DiskRun run;
  std::unique_ptr<std::byte[]> payload;
  std::atomic<bool> busy{false};
  bool unwanted = false;  // erased meanwhile; the tier's mutex
  DiskWrite* next = nullptr;
};

class DiskTier {
 public:
  /// Null where the directory cannot be used; `warn` has said why.
  static std::shared_ptr<DiskTier> open(const DiskOptions& options);
  ~DiskTier();
  DiskTier(const DiskTier&) = delete;
  DiskTier& operator=(const DiskTier&) = delete;

  DiskCounters counters() const;
  /// Removes the files whose names begin so, of one namespace or of all. Any thread; the writer asks the disk.
  void erase(const std::string& name_prefix, std::optional<uint64_t> name_space);

  // For DiskPages.
  const DiskOptions& options() const { return options_; }
  std::shared_ptr<DiskModel> attach(const shm::DiskFormat& format, std::function<void()> wake);
  /// Returns when no thread works for it any more.
  void detach(DiskModel& model, std::span<const std::unique_ptr<DiskFetch>> fetches, DiskWrite& write);
  /// Adds to a fetch what is on disk behind `parent` of `tokens`, `most` pages at the most. The tokens that it has.
  uint32_t plan(DiskFetch& fetch, uint64_t name_space, const shm::PageKey& parent, std::span<const uint32_t> tokens,
                uint32_t most) const;
  /// Whether so many bytes are read before `seconds` have passed, as far as is known.
  bool reads_within(uint64_t bytes, double seconds) const;
  void submit(DiskFetch& fetch);
  /// A fetch has taken too long with what it has done so far.
  void note_slow(const DiskFetch& fetch);
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

 private:
  DiskTier(const DiskOptions& options, int directory, int lock);
  double daily_bytes() const {
    return static_cast<double>(options_.bytes_per_day ? options_.bytes_per_day : options_.budget_bytes);
  }
  void read_loop();
  void write_loop();
  void survey();
  bool look_at_one(std::unique_lock<std::mutex>& lock);
  void looked_at_all(std::unique_lock<std::mutex>& lock, DiskModel& model);
  void drop_damaged(std::unique_lock<std::mutex>& lock, std::shared_ptr<DiskFile> file);
  void warn(std::unique_lock<std::mutex>& lock, const std::string& line);
  void read(std::unique_lock<std::mutex>& lock, DiskFetch& fetch);
  uint32_t read_pages(DiskFetch& fetch, double& seconds);
  void write(std::unique_lock<std::mutex>& lock, DiskWrite& write);
  int write_file(const DiskWrite& write, std::span<const std::byte> header, const std::string& name, size_t pages);
  void pace(uint64_t bytes, Clock::time_point since);
  void make_room(std::unique_lock<std::mutex>& lock, uint64_t bytes);
  uint32_t forget(const std::shared_ptr<DiskFile>& file);
  void remove_erased(std::unique_lock<std::mutex>& lock);
  void store_uses(std::unique_lock<std::mutex>& lock);

  const DiskOptions options_;
  const int directory_, lock_;  // descriptors

  mutable std::mutex mutex_;
  std::condition_variable for_reader_, for_writer_, for_engine_;
  bool quit_ = false, hurry_ = false, surveyed_ = false, writing_ = true;
  DiskFiles files_;
  std::vector<std::string> erased_;  // files that are not removed yet
  std::vector<std::shared_ptr<DiskModel>> models_;
  DiskFetch *first_fetch_ = nullptr, *last_fetch_ = nullptr, *reading_ = nullptr;
  DiskWrite *first_write_ = nullptr, *last_write_ = nullptr, *being_written_ = nullptr;
  DiskCounters counters_;
  uint64_t queued_bytes_ = 0;         // to be read
  double read_bytes_per_second_ = 0;  // as measured; 0: not yet
  Clock::time_point measured_{};
  double allowance_bytes_;  // that may be written
  Clock::time_point allowance_time_ = Clock::now();
  std::thread reader_, writer_;
};

}  // namespace ellm::serve
