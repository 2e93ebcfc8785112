// See disk_catalog.h.
#include "daemon/serve/disk_catalog.h"

#include <utility>

namespace ellm::serve {

DiskCatalog::DiskCatalog(const DiskOptions& wanted, std::unique_ptr<const DiskDirectory> there)
    : options(wanted), directory(std::move(there)) {
  counters.budget_bytes = options.budget_bytes;
  counters.writing = true;
}

uint64_t DiskCatalog::index_bytes() const {
  uint64_t sum = files.memory_bytes();
  for (const auto& model : models) sum += model->texts.memory_bytes();
  return sum;
}

bool DiskCatalog::lacks_room(uint64_t bytes, uint64_t more_index_bytes) const {
  return files.bytes() + bytes > options.budget_bytes || index_bytes() + more_index_bytes > options.index_bytes;
}

uint32_t DiskCatalog::forget(const std::shared_ptr<DiskFile>& file) {
  uint32_t pages = 0;
  for (const auto& model : models) pages += model->texts.erase(*file);
  if (files.find(file->name) == file) files.erase(file->name);
  return pages;
}

void DiskCatalog::warn(std::unique_lock<std::mutex>& lock, std::initializer_list<std::string_view> pieces) {
  lock.unlock();
  try {
    std::string line;
    for (const std::string_view piece : pieces) line += piece;
    options.warn(line);
  } catch (const std::bad_alloc&) {
    // What it is about has been counted.
  }
  lock.lock();
}

void DiskCatalog::no_memory(std::unique_lock<std::mutex>& lock) {
  if (counters.memory_failures++ == 0)
    warn(lock, {"prefixes on disk: memory is short: some are not found, not read or not written"});
}

void DiskCatalog::end() {
  std::lock_guard lock(mutex);
  quit = true;
  for_reader.notify_all();
  for_writer.notify_all();
}

}  // namespace ellm::serve
