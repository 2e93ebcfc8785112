// See disk_writer.h.
#include "daemon/serve/disk_writer.h"

#include <algorithm>
#include <cstring>
#include <ctime>
#include <utility>

#include "shm/page_record.h"

namespace ellm::serve {
namespace {

constexpr double kDaySeconds = 86400;
constexpr std::chrono::seconds kStoreUses{60};  // how often the times of use go to the file system

}  // namespace

DiskWriter::DiskWriter(DiskCatalog& catalog) : catalog_(catalog), allowance_bytes_(daily_bytes()) {
  thread_ = std::thread([this] { loop(); });
}

DiskWriter::~DiskWriter() {
  catalog_.end();
  thread_.join();
}

double DiskWriter::daily_bytes() const {
  const DiskOptions& options = catalog_.options;
  return static_cast<double>(options.bytes_per_day ? options.bytes_per_day : options.budget_bytes);
}

// The engine thread's.

void DiskWriter::note_use(DiskModel& model, const shm::KvPages& kv, std::span<const shm::PageId> pages,
                          std::vector<uint8_t>& missing) {
  const int64_t now_s = std::time(nullptr);
  std::lock_guard lock(catalog_.mutex);
  for (const shm::PageId page : pages) {
    const shm::PageRecordData& record = kv.record(page);
    uint32_t common = 0;
    const DiskPlace* place = model.texts.find({record.parent_key[0], record.parent_key[1]}, record.name_space,
                                              std::span(record.tokens, record.n_tokens), common);
    const bool there = place && place->page.key == shm::PageKey{record.key[0], record.key[1]};
    missing.push_back(!there);
    if (there && place->file->last_use_s != now_s) place->file->last_use_s = now_s, place->file->touched = true;
  }
}

bool DiskWriter::wants(bool used_again) {
  std::lock_guard lock(catalog_.mutex);
  const auto now = Clock::now();
  const double full = daily_bytes();
  const std::chrono::duration<double> passed = now - std::exchange(allowance_time_, now);
  allowance_bytes_ = std::min(full, allowance_bytes_ + full / kDaySeconds * passed.count());
  return catalog_.counters.writing && allowance_bytes_ > (used_again ? 0 : full / 2);
}

void DiskWriter::submit(DiskWrite& write) {
  std::lock_guard lock(catalog_.mutex);
  write.busy = true;
  write.unwanted = false;
  queue_.push(write);
  catalog_.for_writer.notify_one();
}

bool DiskWriter::await(const DiskWrite& write, Clock::time_point until) {
  std::unique_lock lock(catalog_.mutex);
  return catalog_.for_engine.wait_until(lock, until, [&] { return !write.busy; });
}

void DiskWriter::hurry() {
  std::lock_guard lock(catalog_.mutex);
  hurry_ = true;
  catalog_.for_writer.notify_one();
}

void DiskWriter::erase(const std::string& name_prefix, std::optional<uint64_t> name_space) {
  std::lock_guard lock(catalog_.mutex);
  const auto meant = [&](const DiskWrite& write) {
    return write.model->name_prefix.starts_with(name_prefix) && (!name_space || write.run.name_space == *name_space);
  };
  std::vector<std::shared_ptr<DiskFile>> going;
  for (const auto& [name, file] : catalog_.files.all()) {
    if (name.starts_with(name_prefix) && (!name_space || file->name_space == *name_space)) going.push_back(file);
  }
  erased_.insert(erased_.end(), going.begin(), going.end());  // from here on nothing can fail
  for (const auto& file : going) catalog_.forget(file);
  for (DiskWrite* each = queue_.front(); each; each = each->next) each->unwanted |= meant(*each);
  if (being_written_) being_written_->unwanted |= meant(*being_written_);
  catalog_.for_writer.notify_one();
}

void DiskWriter::withdraw(const DiskWrite& write) {
  std::unique_lock lock(catalog_.mutex);
  queue_.remove(write);
  catalog_.for_engine.wait(lock, [&] { return being_written_ != &write; });
}

// The thread's own.

void DiskWriter::loop() {
  std::unique_lock lock(catalog_.mutex);
  auto store_next = Clock::now() + kStoreUses;
  for (;;) {
    catalog_.for_writer.wait_until(lock, store_next, [&] {
      return catalog_.quit || !erased_.empty() || (catalog_.surveyed && (queue_.front() || catalog_.lacks_room()));
    });
    remove_erased(lock);                           // before files of the same names are written
    if (catalog_.surveyed) make_room(lock, 0, 0);  // the budget may be less than last time
    if (DiskWrite* next = catalog_.quit || !catalog_.surveyed ? nullptr : queue_.pop()) write(lock, *next);
    if (!catalog_.quit && Clock::now() < store_next) continue;
    catalog_.attempt(lock, [&] { store_uses(lock); });
    store_next = Clock::now() + kStoreUses;
    if (catalog_.quit) return;
  }
}

void DiskWriter::remove_erased(std::unique_lock<std::mutex>& lock) {
  const auto going = std::exchange(erased_, {});
  lock.unlock();
  for (const auto& file : going) catalog_.directory->remove(file->name);
  lock.lock();
}

void DiskWriter::store_uses(std::unique_lock<std::mutex>& lock) {
  std::vector<std::pair<std::shared_ptr<DiskFile>, int64_t>> uses;
  for (const auto& [name, file] : catalog_.files.all()) {
    if (file->touched) uses.emplace_back(file, file->last_use_s);
  }
  for (const auto& [file, use] : uses) file->touched = false;
  lock.unlock();
  for (const auto& [file, use] : uses) catalog_.directory->store_use(file->name, use);
  lock.lock();
}

/// Removes files until so much more is within the budget, and what is to be known of it.
void DiskWriter::make_room(std::unique_lock<std::mutex>& lock, uint64_t bytes, uint64_t index_bytes) {
  while (catalog_.lacks_room(bytes, index_bytes)) {
    const auto file = catalog_.files.oldest();
    if (!file) return;
    catalog_.forget(file);
    lock.unlock();
    catalog_.directory->remove(file->name);
    lock.lock();
  }
}

void DiskWriter::write(std::unique_lock<std::mutex>& lock, DiskWrite& write) {
  being_written_ = &write;
  catalog_.attempt(lock, [&] { write_whole_pages(lock, write); });
  being_written_ = nullptr;
  write.busy = false;
  write.model->wake();
  catalog_.for_engine.notify_all();
}

/// Up to the first that is not: a page that an earlier process left in the segment may be damaged.
void DiskWriter::write_whole_pages(std::unique_lock<std::mutex>& lock, DiskWrite& write) {
  lock.unlock();
  const uint64_t page_bytes = write.model->page_bytes;
  const std::byte* payload = write.payload.get();
  auto& pages = write.run.pages;
  const auto damaged = std::ranges::find_if(pages, [&](const shm::DiskPage& page) {
    return shm::disk_checksum({std::exchange(payload, payload + page_bytes), page_bytes}) != page.checksum;
  });
  pages.erase(damaged, pages.end());
  if (pages.empty()) return lock.lock();
  const std::vector<std::byte> header = shm::disk_header(write.model->format, write.run);
  const std::string name = shm::disk_file_name(write.model->format, write.run.name_space, pages.front().key);
  const uint64_t bytes = header.size() + pages.size() * page_bytes;
  lock.lock();
  if (bytes > catalog_.options.budget_bytes || !catalog_.counters.writing || write.unwanted) return;
  auto file = std::make_shared<DiskFile>(
      DiskFile{name, bytes, write.run.name_space, header.size(), std::time(nullptr), write.run.depth, false});
  make_room(lock, bytes, kDiskFileMemory + kDiskRunMemory + pages.size() * kDiskPlaceMemory);
  lock.unlock();
  const int error = write_file(write, header, name);
  lock.lock();
  if (error != 0) {
    catalog_.counters.writing = false;
    return catalog_.warn(
        lock, {"prefixes are not written to disk any more: ", catalog_.options.directory, ": ", std::strerror(error)});
  }
  if (write.unwanted) return catalog_.directory->remove(name);
  if (const auto before = catalog_.files.find(name)) catalog_.forget(before);
  try {
    catalog_.files.add(file);
    write.model->texts.insert(file, write.run);
  } catch (const std::bad_alloc&) {  // a file that nobody knows of would not be erased
    catalog_.forget(file);
    catalog_.directory->remove(name);
    throw;
  }
  catalog_.counters.pages_written += pages.size();
  allowance_bytes_ -= static_cast<double>(bytes);
}

/// 0, or an errno.
int DiskWriter::write_file(const DiskWrite& write, std::span<const std::byte> header, const std::string& name) {
  const auto start = Clock::now();
  const size_t page_bytes = write.model->page_bytes;
  shm::DiskFileWriter writer(catalog_.directory->fd(), name);
  if (const int error = writer.open()) return error;
  if (const int error = writer.write(header)) return error;
  for (size_t page = 0; page < write.run.pages.size(); ++page) {
    if (const int error = writer.write({write.payload.get() + page * page_bytes, page_bytes})) return error;
    pace((page + 1) * page_bytes, start);
  }
  return writer.publish();
}

/// Waits until so many bytes were due.
void DiskWriter::pace(uint64_t bytes, Clock::time_point since) {
  const double seconds = static_cast<double>(bytes) / static_cast<double>(catalog_.options.write_bytes_per_second);
  const auto due = since + std::chrono::duration_cast<Clock::duration>(std::chrono::duration<double>(seconds));
  std::unique_lock lock(catalog_.mutex);
  catalog_.for_writer.wait_until(lock, due, [&] { return hurry_ || catalog_.quit; });
}

}  // namespace ellm::serve
