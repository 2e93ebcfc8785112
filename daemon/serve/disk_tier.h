// The disk under all models' prefixes: one directory within a byte budget, a thread that writes behind at a bounded
// pace and a thread that reads what a request waits for (so a read never waits for a flush). Everything here can fail
// without harm: what cannot be written is computed again one day, what cannot be read is computed now. The engine
// thread's side of a model is disk_pages.h.
#pragma once
#include <memory>
#include <optional>
#include <span>
#include <string>

#include "daemon/serve/disk_reader.h"
#include "daemon/serve/disk_writer.h"

namespace ellm::serve {

class DiskTier {
 public:
  /// Null where the directory cannot be used; `warn` has said why.
  static std::shared_ptr<DiskTier> open(const DiskOptions& options);
  DiskTier(const DiskTier&) = delete;
  DiskTier& operator=(const DiskTier&) = delete;

  DiskCounters counters() const;
  /// Of the memory that the index may take, what it does not have yet. Any thread.
  uint64_t promised_bytes() const;
  /// Removes the files whose names begin so, of one namespace or of all. Any thread; the writer asks the disk.
  void erase(const std::string& name_prefix, std::optional<uint64_t> name_space);

  // For DiskPages.
  const DiskOptions& options() const { return catalog_->options; }
  std::shared_ptr<DiskModel> attach(const shm::DiskFormat& format, std::function<void()> wake);
  /// Returns when no thread works for it any more.
  void detach(DiskModel& model, std::span<const std::unique_ptr<DiskFetch>> fetches, const DiskWrite& write);
  /// A model goes without it for lack of memory.
  void no_memory();
  DiskReader& reader() { return reader_; }
  DiskWriter& writer() { return writer_; }

 private:
  explicit DiskTier(std::unique_ptr<DiskCatalog> catalog);

  const std::unique_ptr<DiskCatalog> catalog_;
  DiskReader reader_;
  DiskWriter writer_;
};

}  // namespace ellm::serve
