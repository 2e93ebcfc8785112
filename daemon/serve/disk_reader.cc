// See disk_reader.h.
#include "daemon/serve/disk_reader.h"

#include <fcntl.h>

#include <algorithm>
#include <utility>

namespace ellm::serve {
namespace {

using shm::DiskFault;

constexpr std::chrono::seconds kMeasureAgain{60};       // a disk that was too slow is tried again
constexpr std::chrono::milliseconds kAwaitMemory{100};  // for the list of files, without which nothing goes on

double seconds_since(Clock::time_point from) { return std::chrono::duration<double>(Clock::now() - from).count(); }

}  // namespace

DiskReader::DiskReader(DiskCatalog& catalog) : catalog_(catalog) {
  thread_ = std::thread([this] { loop(); });
}

DiskReader::~DiskReader() {
  catalog_.end();
  thread_.join();
}

// The engine thread's.

uint32_t DiskReader::plan(DiskFetch& fetch, uint64_t name_space, const shm::PageKey& parent,
                          std::span<const uint32_t> tokens, uint32_t most) const {
  std::lock_guard lock(catalog_.mutex);
  uint32_t sum = 0, common = 0;
  const shm::PageKey* key = &parent;
  while (fetch.places.size() < most && !tokens.empty()) {
    const DiskPlace* place = fetch.model->texts.find(*key, name_space, tokens, common);
    if (place == nullptr) break;
    fetch.places.push_back(*place);  // within its capacity
    sum += common;
    if (common < shm::kPageTokens) break;
    key = &fetch.places.back().page.key;
    tokens = tokens.subspan(shm::kPageTokens);
  }
  return sum;
}

bool DiskReader::reads_within(uint64_t bytes, double seconds) const {
  std::lock_guard lock(catalog_.mutex);
  if (read_bytes_per_second_ == 0 || Clock::now() - measured_ > kMeasureAgain) return true;
  return static_cast<double>(queued_bytes_ + bytes) < seconds * read_bytes_per_second_;
}

void DiskReader::submit(DiskFetch& fetch) {
  std::lock_guard lock(catalog_.mutex);
  fetch.done = 0;
  fetch.abandoned = fetch.finished = false;
  queued_bytes_ += fetch.places.size() * fetch.model->page_bytes;
  queue_.push(fetch);
  catalog_.for_reader.notify_one();
}

void DiskReader::note_slow(const DiskFetch& fetch) {
  std::lock_guard lock(catalog_.mutex);
  if (reading_ != &fetch) return;  // others were read before it
  const double bytes = static_cast<double>((fetch.done + 1) * fetch.model->page_bytes);
  const double rate = bytes / std::max(1e-6, seconds_since(fetch.started));
  if (read_bytes_per_second_ != 0 && rate >= read_bytes_per_second_) return;
  read_bytes_per_second_ = rate;
  measured_ = Clock::now();
}

void DiskReader::withdraw(const DiskModel& model, std::span<const std::unique_ptr<DiskFetch>> fetches) {
  std::unique_lock lock(catalog_.mutex);
  for (const auto& fetch : fetches) {
    fetch->abandoned = true;
    queue_.remove(*fetch);
  }
  catalog_.for_engine.wait(lock, [&] { return !reading_ || reading_->model.get() != &model; });
}

// The thread's own.

void DiskReader::loop() {
  std::unique_lock lock(catalog_.mutex);
  while (!catalog_.quit) {
    const bool done = catalog_.attempt(lock, [&] { turn(lock); });
    if (!done && !catalog_.surveyed && !catalog_.quit) catalog_.for_reader.wait_for(lock, kAwaitMemory);
  }
}

void DiskReader::turn(std::unique_lock<std::mutex>& lock) {
  if (!catalog_.surveyed) survey(lock);
  else if (DiskFetch* fetch = queue_.pop()) read(lock, *fetch);
  else if (!look_at_one(lock)) catalog_.for_reader.wait(lock);
}

/// Names and sizes of all files; all of them: `erase` and the budget are promises.
void DiskReader::survey(std::unique_lock<std::mutex>& lock) {
  lock.unlock();
  std::vector<std::shared_ptr<DiskFile>> found;
  catalog_.directory->list([&](DiskDirectory::Entry entry) {
    found.push_back(std::make_shared<DiskFile>(
        DiskFile{std::move(entry.name), entry.bytes, entry.name_space, 0, entry.last_use_s, 0, false}));
  });
  lock.lock();
  for (auto& file : found) catalog_.files.add(std::move(file));
  catalog_.surveyed = true;
  catalog_.for_writer.notify_one();
}

/// Reads the header of one file of a model that has not all of them looked at. False: there is none.
bool DiskReader::look_at_one(std::unique_lock<std::mutex>& lock) {
  const auto found = std::ranges::find_if(catalog_.models, [](const auto& each) { return !each->known; });
  if (found == catalog_.models.end()) return false;
  const std::shared_ptr<DiskModel> model = *found;
  if (!model->listed) list(*model);
  if (model->to_look_at.empty()) {
    looked_at_all(lock, *model);
    return true;
  }
  const std::string name = std::move(model->to_look_at.back());
  model->to_look_at.pop_back();
  lock.unlock();
  shm::DiskRun run;
  uint64_t payload_offset = 0;
  const DiskFault fault = catalog_.directory->look_at(name, model->format, run, payload_offset);
  lock.lock();
  const auto file = catalog_.files.find(name);
  if (!file) return true;  // it went meanwhile
  if (fault == DiskFault::none) {
    file->payload_offset = payload_offset;
    file->depth = run.depth;
    model->texts.insert(file, run);
    if (catalog_.lacks_room()) catalog_.for_writer.notify_one();
  } else {
    ++model->skipped[static_cast<size_t>(fault)];
    ++catalog_.counters.files_skipped;
  }
  if (fault == DiskFault::damaged) {
    catalog_.forget(file);
    catalog_.directory->remove(name);
  }
  return true;
}

/// Where memory lacks, what an earlier process left is not found.
void DiskReader::list(DiskModel& model) {
  model.listed = true;
  const auto& all = catalog_.files.all();
  for (auto at = all.lower_bound(model.name_prefix); at != all.end() && at->first.starts_with(model.name_prefix); ++at)
    model.to_look_at.push_back(at->first);
}

void DiskReader::looked_at_all(std::unique_lock<std::mutex>& lock, DiskModel& model) {
  model.known = true;
  model.wake();
  const auto count = [&](DiskFault fault) { return model.skipped[static_cast<size_t>(fault)]; };
  const std::pair<DiskFault, const char*> kinds[] = {{DiskFault::damaged, "damaged (removed)"},
                                                     {DiskFault::other_layout, "of another layout version"},
                                                     {DiskFault::foreign, "of another model, setting or user"},
                                                     {DiskFault::unreadable, "unreadable"}};
  std::string line;
  for (const auto& [fault, what] : kinds) {
    if (count(fault) != 0) line += (line.empty() ? "" : ", ") + std::to_string(count(fault)) + " " + what;
  }
  if (!line.empty()) catalog_.warn(lock, {"prefixes on disk, ", catalog_.options.directory, ": files skipped: ", line});
}

void DiskReader::read(std::unique_lock<std::mutex>& lock, DiskFetch& fetch) {
  reading_ = &fetch;
  lock.unlock();
  double seconds = 0;
  const uint32_t done = read_pages(fetch, seconds);
  lock.lock();
  const uint64_t page_bytes = fetch.model->page_bytes;
  queued_bytes_ -= fetch.places.size() * page_bytes;
  catalog_.counters.pages_read += done;
  if (done != 0 && seconds > 0) {
    const double rate = static_cast<double>(done * page_bytes) / seconds;
    read_bytes_per_second_ = read_bytes_per_second_ == 0 ? rate : (read_bytes_per_second_ + rate) / 2;
    measured_ = Clock::now();
  }
  if (done < fetch.places.size() && !fetch.abandoned) drop_damaged(lock, fetch.places[done].file);
  reading_ = nullptr;
  fetch.finished.store(true, std::memory_order_release);
  fetch.model->wake();
  catalog_.for_engine.notify_all();
}

/// How many of the first are whole.
uint32_t DiskReader::read_pages(DiskFetch& fetch, double& seconds) const {
  const auto start = Clock::now();
  const uint64_t page_bytes = fetch.model->page_bytes;
  const DiskFile* opened = nullptr;
  shm::Descriptor file;
  uint32_t done = 0;
  for (const DiskPlace& place : fetch.places) {
    if (fetch.abandoned) break;
    const uint64_t offset = place.file->payload_offset + place.index * page_bytes;
    if (place.file.get() != opened) {
      opened = place.file.get();
      file = catalog_.directory->open_file(opened->name);
      if (file) posix_fadvise(file.get(), static_cast<off_t>(offset), 0, POSIX_FADV_WILLNEED);
    }
    const std::span<std::byte> to(fetch.payloads[done], page_bytes);
    if (!file || !shm::read_disk_payload(file.get(), offset, to, place.page.checksum)) break;
    fetch.done.store(++done, std::memory_order_release);
  }
  seconds = seconds_since(start);
  return done;
}

void DiskReader::drop_damaged(std::unique_lock<std::mutex>& lock, std::shared_ptr<DiskFile> file) {
  if (catalog_.files.find(file->name) != file) return;  // it was evicted a moment ago
  const uint32_t pages = catalog_.forget(file);
  catalog_.counters.pages_damaged += pages;
  catalog_.directory->remove(file->name);
  const std::string count = std::to_string(pages);  // short enough to need no memory
  catalog_.warn(lock, {"prefixes on disk: ", catalog_.options.directory, "/", file->name, " was damaged: ", count,
                       " pages dropped"});
}

}  // namespace ellm::serve
