// What the disk tier knows, under one mutex: the files, the models that are loaded, what was counted. Shared by the
// tier's two threads (disk_reader.h, disk_writer.h) and all who ask (disk_tier.h).
//
// Locks: this mutex, then whatever `wake` takes; nobody holds it while the disk is asked.
#pragma once
#include <atomic>
#include <chrono>
#include <condition_variable>
#include <functional>
#include <initializer_list>
#include <memory>
#include <mutex>
#include <new>
#include <string>
#include <string_view>
#include <vector>

#include "daemon/serve/disk_directory.h"
#include "daemon/serve/disk_index.h"

namespace ellm::serve {

using Clock = std::chrono::steady_clock;

struct DiskOptions {
  std::string directory;  // made if need be; its parent, too
  uint64_t budget_bytes = 0;
  uint64_t write_bytes_per_second = 64u << 20;
  uint64_t bytes_per_day = 0;            // that are written; 0: as many as the budget
  uint64_t index_bytes = 1 << 20;        // of memory, to know what is where
  bool read_always = false;              // whatever it takes: for tests, whose models compute at once
  std::chrono::milliseconds rest{5000};  // that a text is left alone before it is written: most go on at once
  std::function<void(const std::string&)> warn = [](const auto&) {};  // any thread
};

struct DiskCounters {
  uint64_t bytes = 0, budget_bytes = 0;
  uint64_t index_bytes = 0;  // of memory
  uint64_t pages_written = 0, pages_read = 0, pages_damaged = 0, files_skipped = 0;
  uint64_t memory_failures = 0;  // times that something was left out for lack of memory
  bool writing = false;          // false: the disk is full or refused, see the log
  bool looking = false;          // at what an earlier process left
};

/// What the tier knows of a loaded model. Guarded by the catalog's mutex, but for what never changes.
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

struct DiskCatalog {
  DiskCatalog(const DiskOptions& wanted, std::unique_ptr<const DiskDirectory> there);

  const DiskOptions options;
  const std::unique_ptr<const DiskDirectory> directory;

  std::mutex mutex;  // guards all that follows
  std::condition_variable for_reader, for_writer, for_engine;
  DiskFiles files;
  std::vector<std::shared_ptr<DiskModel>> models;
  DiskCounters counters;  // but for what DiskTier::counters() adds
  bool surveyed = false;  // all files are in `files`
  bool quit = false;

  /// Of memory, by `files` and all models' texts.
  uint64_t index_bytes() const;
  /// Whether so much more is beyond the budget, or (of memory) beyond the index's.
  bool lacks_room(uint64_t bytes = 0, uint64_t more_index_bytes = 0) const;
  /// A file that is gone, or will be. How many pages were to be found in it.
  uint32_t forget(const std::shared_ptr<DiskFile>& file);
  /// Joins the pieces to a line. Lets go of the lock meanwhile: a log may be slow. Silent where there is no memory.
  void warn(std::unique_lock<std::mutex>& lock, std::initializer_list<std::string_view> pieces);
  /// Work that may lack memory: then it is left out, counted, and said once; false. It may end without the lock.
  template <class Work>
  bool attempt(std::unique_lock<std::mutex>& lock, Work&& work) {
    try {
      work();
      return true;
    } catch (const std::bad_alloc&) {
      if (!lock.owns_lock()) lock.lock();
      no_memory(lock);
      return false;
    }
  }
  void no_memory(std::unique_lock<std::mutex>& lock);
  /// Both threads end. Not under the mutex.
  void end();
};

}  // namespace ellm::serve
