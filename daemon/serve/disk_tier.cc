// See disk_tier.h.
//
// What is written. Keys and values cost 3 to 17 MB for each second of prefill (measured: qwen-1.5b 2.7, smollm2 16.6
// MB/s on 2 threads), up to a terabyte a day, and most one-time prompts are never seen again. So each page is written
// at most once, when its text has rested; and a day writes at most what the budget holds: an allowance that fills
// within a day. While more than half of it is left all pages are written, then only those that a second request has
// used.
#include "daemon/serve/disk_tier.h"

#include <dirent.h>
#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <ctime>
#include <filesystem>
#include <utility>

#include "shm/page_record.h"

namespace ellm::serve {
namespace {

using shm::DiskFault;

constexpr double kDaySeconds = 86400;
constexpr std::chrono::seconds kStoreUses{60};     // how often the times of use go to the file system
constexpr std::chrono::seconds kMeasureAgain{60};  // a disk that was too slow is tried again
constexpr const char* kLockName = "lock";

double seconds_between(Clock::time_point from, Clock::time_point to) {
  return std::chrono::duration<double>(to - from).count();
}

/// The directory, this process's alone. -1: not to be had, `why` says why.
int open_directory(const std::string& path, std::string& why) {
  std::error_code error;
  std::filesystem::create_directories(std::filesystem::path(path).parent_path(), error);
  if (error || (mkdir(path.c_str(), 0700) != 0 && errno != EEXIST)) {
    why = error ? error.message() : std::strerror(errno);
    return -1;
  }
  const int fd = ::open(path.c_str(), O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
  struct stat status{};
  if (fd < 0 || fstat(fd, &status) != 0) {
    why = std::strerror(errno);
  } else if (status.st_uid != geteuid()) {
    why = "it belongs to another user";
  } else if ((status.st_mode & 077) != 0 && fchmod(fd, 0700) != 0) {
    why = std::strerror(errno);
  } else {
    return fd;
  }
  if (fd >= 0) close(fd);
  return -1;
}

int take_lock(int directory, std::string& why) {
  const int fd = openat(directory, kLockName, O_RDWR | O_CREAT | O_NOFOLLOW | O_CLOEXEC, 0600);
  if (fd >= 0 && flock(fd, LOCK_EX | LOCK_NB) == 0) return fd;
  why = fd >= 0 && errno == EWOULDBLOCK ? "another process uses it" : std::strerror(errno);
  if (fd >= 0) close(fd);
  return -1;
}

template <class T>
void push(T*& first, T*& last, T& item) {
  item.next = nullptr;
  (first ? last->next : first) = &item;
  last = &item;
}
template <class T>
T* pop(T*& first, T*& last) {
  T* item = first;
  if (item) first = item->next;
  if (!first) last = nullptr;
  return item;
}
template <class T>
void remove(T*& first, T*& last, const T& item) {
  T *head = nullptr, *tail = nullptr;
  while (T* each = pop(first, last)) {
    if (each != &item) push(head, tail, *each);
  }
  first = head, last = tail;
}

}  // namespace

std::shared_ptr<DiskTier> DiskTier::open(const DiskOptions& options) {
  std::string why;
  const int directory = open_directory(options.directory, why);
  const int lock = directory < 0 ? -1 : take_lock(directory, why);
  if (lock >= 0) return std::shared_ptr<DiskTier>(new DiskTier(options, directory, lock));
  if (directory >= 0) close(directory);
  options.warn("prefixes are not kept on disk: " + options.directory + ": " + why);
  return nullptr;
}

DiskTier::DiskTier(const DiskOptions& options, int directory, int lock)
    : options_(options), directory_(directory), lock_(lock), allowance_bytes_(daily_bytes()) {
  counters_.budget_bytes = options.budget_bytes;
  reader_ = std::thread([this] { read_loop(); });
  writer_ = std::thread([this] { write_loop(); });
}

DiskTier::~DiskTier() {
  {
    std::lock_guard lock(mutex_);
    quit_ = true;
    for_reader_.notify_all();
    for_writer_.notify_all();
  }
  reader_.join();
  writer_.join();
  close(directory_);
  close(lock_);
}

DiskCounters DiskTier::counters() const {
  std::lock_guard lock(mutex_);
  DiskCounters counters = counters_;
  counters.bytes = files_.bytes();
  counters.writing = writing_;
  counters.looking = !surveyed_ || std::ranges::any_of(models_, [](const auto& model) { return !model->known; });
  return counters;
}

std::shared_ptr<DiskModel> DiskTier::attach(const shm::DiskFormat& format, std::function<void()> wake) {
  auto model = std::make_shared<DiskModel>();
  model->format = format;
  model->page_bytes = format.geometry.page_bytes();
  model->name_prefix = shm::disk_file_prefix(format);
  model->wake = std::move(wake);
  std::lock_guard lock(mutex_);
  models_.push_back(model);
  for_reader_.notify_one();
  return model;
}

void DiskTier::detach(DiskModel& model, std::span<const std::unique_ptr<DiskFetch>> fetches, DiskWrite& write) {
  std::unique_lock lock(mutex_);
  for (const auto& fetch : fetches) {
    fetch->abandoned = true;
    remove(first_fetch_, last_fetch_, *fetch);
  }
  remove(first_write_, last_write_, write);
  const auto works = [&] { return (reading_ && reading_->model.get() == &model) || being_written_ == &write; };
  for_engine_.wait(lock, [&] { return !works(); });
  std::erase_if(models_, [&](const auto& each) { return each.get() == &model; });
}

uint32_t DiskTier::plan(DiskFetch& fetch, uint64_t name_space, const shm::PageKey& parent,
                        std::span<const uint32_t> tokens, uint32_t most) const {
  std::lock_guard lock(mutex_);
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

bool DiskTier::reads_within(uint64_t bytes, double seconds) const {
  std::lock_guard lock(mutex_);
  if (read_bytes_per_second_ == 0 || Clock::now() - measured_ > kMeasureAgain) return true;
  return static_cast<double>(queued_bytes_ + bytes) < seconds * read_bytes_per_second_;
}

void DiskTier::submit(DiskFetch& fetch) {
  std::lock_guard lock(mutex_);
  fetch.done = 0;
  fetch.abandoned = fetch.finished = false;
  queued_bytes_ += fetch.places.size() * fetch.model->page_bytes;
  push(first_fetch_, last_fetch_, fetch);
  for_reader_.notify_one();
}

void DiskTier::note_slow(const DiskFetch& fetch) {
  std::lock_guard lock(mutex_);
  if (reading_ != &fetch) return;  // others were read before it
  const auto now = Clock::now();
  const double bytes = static_cast<double>((fetch.done + 1) * fetch.model->page_bytes);
  const double rate = bytes / std::max(1e-6, seconds_between(fetch.started, now));
  if (read_bytes_per_second_ == 0 || rate < read_bytes_per_second_) read_bytes_per_second_ = rate, measured_ = now;
}

void DiskTier::note_use(DiskModel& model, const shm::KvPages& kv, std::span<const shm::PageId> pages,
                        std::vector<uint8_t>& missing) {
  const int64_t now_s = std::time(nullptr);
  std::lock_guard lock(mutex_);
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

bool DiskTier::wants(bool used_again) {
  std::lock_guard lock(mutex_);
  const auto now = Clock::now();
  const double full = daily_bytes();
  allowance_bytes_ =
      std::min(full, allowance_bytes_ + full / kDaySeconds * seconds_between(std::exchange(allowance_time_, now), now));
  return writing_ && allowance_bytes_ > (used_again ? 0 : full / 2);
}

void DiskTier::submit(DiskWrite& write) {
  std::lock_guard lock(mutex_);
  write.busy = true;
  write.unwanted = false;
  push(first_write_, last_write_, write);
  for_writer_.notify_one();
}

bool DiskTier::await(const DiskWrite& write, Clock::time_point until) {
  std::unique_lock lock(mutex_);
  return for_engine_.wait_until(lock, until, [&] { return !write.busy; });
}

void DiskTier::hurry() {
  std::lock_guard lock(mutex_);
  hurry_ = true;
  for_writer_.notify_one();
}

void DiskTier::erase(const std::string& name_prefix, std::optional<uint64_t> name_space) {
  std::lock_guard lock(mutex_);
  const auto meant = [&](const DiskWrite& write) {
    return write.model->name_prefix.starts_with(name_prefix) && (!name_space || write.run.name_space == *name_space);
  };
  const size_t before = erased_.size();
  for (const auto& [name, file] : files_.all()) {
    if (name.starts_with(name_prefix) && (!name_space || file->name_space == *name_space)) erased_.push_back(name);
  }
  for (size_t i = before; i < erased_.size(); ++i) forget(files_.find(erased_[i]));
  for (DiskWrite* each = first_write_; each; each = each->next) each->unwanted |= meant(*each);
  if (being_written_) being_written_->unwanted |= meant(*being_written_);
  for_writer_.notify_one();
}

/// Under the mutex: a file that is gone, or will be. How many pages were to be found in it.
uint32_t DiskTier::forget(const std::shared_ptr<DiskFile>& file) {
  uint32_t pages = 0;
  for (const auto& model : models_) pages += model->texts.erase(*file);
  if (files_.find(file->name) == file) files_.erase(file->name);
  return pages;
}

// The reader's.

void DiskTier::read_loop() {
  survey();
  std::unique_lock lock(mutex_);
  while (!quit_) {
    if (DiskFetch* fetch = pop(first_fetch_, last_fetch_)) read(lock, *fetch);
    else if (!look_at_one(lock)) for_reader_.wait(lock);
  }
}

/// Names and sizes of all files; removes what a crash left unfinished.
void DiskTier::survey() {
  std::vector<std::shared_ptr<DiskFile>> found;
  const int fd = openat(directory_, ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  DIR* directory = fd < 0 ? nullptr : fdopendir(fd);
  while (const dirent* entry = directory ? readdir(directory) : nullptr) {
    const std::string name = entry->d_name;
    if (name.starts_with(shm::kDiskTemporary)) unlinkat(directory_, name.c_str(), 0);
    const auto name_space = shm::namespace_in(name);
    struct stat status{};
    if (!name_space || fstatat(directory_, name.c_str(), &status, AT_SYMLINK_NOFOLLOW) != 0) continue;
    found.push_back(std::make_shared<DiskFile>(
        DiskFile{name, static_cast<uint64_t>(status.st_size), *name_space, 0, status.st_mtim.tv_sec, 0, false}));
  }
  if (directory) closedir(directory);
  std::lock_guard lock(mutex_);
  for (auto& file : found) files_.add(std::move(file));
  surveyed_ = true;
  for_writer_.notify_one();
}

/// Reads the header of one file of a model that has not all of them looked at. False: there is none.
bool DiskTier::look_at_one(std::unique_lock<std::mutex>& lock) {
  const auto found = std::find_if(models_.begin(), models_.end(), [](const auto& m) { return !m->known; });
  if (found == models_.end()) return false;
  const std::shared_ptr<DiskModel> model = *found;
  if (!std::exchange(model->listed, true)) {
    const auto& all = files_.all();
    for (auto at = all.lower_bound(model->name_prefix); at != all.end() && at->first.starts_with(model->name_prefix);
         ++at)
      model->to_look_at.push_back(at->first);
  }
  if (model->to_look_at.empty()) {
    looked_at_all(lock, *model);
    return true;
  }
  const std::string name = std::move(model->to_look_at.back());
  model->to_look_at.pop_back();
  lock.unlock();
  shm::DiskRun run;
  uint64_t payload_offset = 0;
  const int fd = openat(directory_, name.c_str(), O_RDONLY | O_NOFOLLOW | O_CLOEXEC);
  DiskFault fault = fd < 0 ? DiskFault::unreadable : shm::read_disk_header(fd, model->format, run, payload_offset);
  if (fd >= 0) close(fd);
  if (fault == DiskFault::none && name != shm::disk_file_name(model->format, run.name_space, run.pages.front().key))
    fault = DiskFault::foreign;  // it has been renamed
  lock.lock();
  const auto file = files_.find(name);
  if (!file) return true;  // it went meanwhile
  if (fault == DiskFault::none) {
    file->payload_offset = payload_offset;
    file->depth = run.depth;
    model->texts.insert(file, run);
  } else {
    ++model->skipped[static_cast<size_t>(fault)];
    ++counters_.files_skipped;
  }
  if (fault == DiskFault::damaged) {
    forget(file);
    unlinkat(directory_, name.c_str(), 0);
  }
  return true;
}

void DiskTier::looked_at_all(std::unique_lock<std::mutex>& lock, DiskModel& model) {
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
  if (!line.empty()) warn(lock, "prefixes on disk, " + options_.directory + ": files skipped: " + line);
}

/// Not under the mutex: a log may be slow.
void DiskTier::warn(std::unique_lock<std::mutex>& lock, const std::string& line) {
  lock.unlock();
  options_.warn(line);
  lock.lock();
}

void DiskTier::read(std::unique_lock<std::mutex>& lock, DiskFetch& fetch) {
  reading_ = &fetch;
  lock.unlock();
  double seconds = 0;
  const uint32_t done = read_pages(fetch, seconds);
  lock.lock();
  const uint64_t page_bytes = fetch.model->page_bytes;
  queued_bytes_ -= fetch.places.size() * page_bytes;
  counters_.pages_read += done;
  if (done != 0 && seconds > 0) {
    const double rate = static_cast<double>(done * page_bytes) / seconds;
    read_bytes_per_second_ = read_bytes_per_second_ == 0 ? rate : (read_bytes_per_second_ + rate) / 2;
    measured_ = Clock::now();
  }
  if (done < fetch.places.size() && !fetch.abandoned) drop_damaged(lock, fetch.places[done].file);
  reading_ = nullptr;
  fetch.finished.store(true, std::memory_order_release);
  fetch.model->wake();
  for_engine_.notify_all();
}

void DiskTier::drop_damaged(std::unique_lock<std::mutex>& lock, std::shared_ptr<DiskFile> file) {
  if (files_.find(file->name) != file) return;  // it was evicted a moment ago
  const uint32_t pages = forget(file);
  counters_.pages_damaged += pages;
  unlinkat(directory_, file->name.c_str(), 0);
  warn(lock, "prefixes on disk: " + options_.directory + "/" + file->name + " was damaged: " + std::to_string(pages) +
                 " pages dropped");
}

/// How many of the first are whole.
uint32_t DiskTier::read_pages(DiskFetch& fetch, double& seconds) {
  const auto start = Clock::now();
  const uint64_t page_bytes = fetch.model->page_bytes;
  const DiskFile* open_file = nullptr;
  int fd = -1;
  uint32_t done = 0;
  for (const DiskPlace& place : fetch.places) {
    if (fetch.abandoned) break;
    const uint64_t offset = place.file->payload_offset + place.index * page_bytes;
    if (place.file.get() != open_file) {
      if (fd >= 0) close(fd);
      open_file = place.file.get();
      fd = openat(directory_, open_file->name.c_str(), O_RDONLY | O_NOFOLLOW | O_CLOEXEC);
      if (fd >= 0) posix_fadvise(fd, static_cast<off_t>(offset), 0, POSIX_FADV_WILLNEED);
    }
    if (fd < 0 || !shm::read_disk_payload(fd, offset, {fetch.payloads[done], page_bytes}, place.page.checksum)) break;
    fetch.done.store(++done, std::memory_order_release);
  }
  if (fd >= 0) close(fd);
  seconds = seconds_between(start, Clock::now());
  return done;
}

// The writer's.

void DiskTier::write_loop() {
  std::unique_lock lock(mutex_);
  auto store_next = Clock::now() + kStoreUses;
  for (;;) {
    for_writer_.wait_until(lock, store_next, [&] {
      return quit_ || !erased_.empty() || (surveyed_ && (first_write_ || files_.bytes() > options_.budget_bytes));
    });
    remove_erased(lock);                // before files of the same names are written
    if (surveyed_) make_room(lock, 0);  // the budget may be less than last time
    if (DiskWrite* next = quit_ || !surveyed_ ? nullptr : pop(first_write_, last_write_)) write(lock, *next);
    if (!quit_ && Clock::now() < store_next) continue;
    store_uses(lock);
    store_next = Clock::now() + kStoreUses;
    if (quit_) return;
  }
}

void DiskTier::remove_erased(std::unique_lock<std::mutex>& lock) {
  const auto names = std::exchange(erased_, {});
  lock.unlock();
  for (const std::string& name : names) unlinkat(directory_, name.c_str(), 0);
  lock.lock();
}

void DiskTier::store_uses(std::unique_lock<std::mutex>& lock) {
  std::vector<std::pair<std::string, int64_t>> uses;
  for (const auto& [name, file] : files_.all()) {
    if (std::exchange(file->touched, false)) uses.emplace_back(name, file->last_use_s);
  }
  lock.unlock();
  for (const auto& [name, use] : uses) {
    const timespec times[2] = {{0, UTIME_OMIT}, {use, 0}};
    utimensat(directory_, name.c_str(), times, AT_SYMLINK_NOFOLLOW);
  }
  lock.lock();
}

void DiskTier::write(std::unique_lock<std::mutex>& lock, DiskWrite& write) {
  being_written_ = &write;
  lock.unlock();
  const uint64_t page_bytes = write.model->page_bytes;
  size_t pages = 0;  // a page that an earlier process left in the segment may be damaged
  while (pages < write.run.pages.size() &&
         shm::disk_checksum({write.payload.get() + pages * page_bytes, page_bytes}) == write.run.pages[pages].checksum)
    ++pages;
  write.run.pages.resize(pages);
  const std::vector<std::byte> header = shm::disk_header(write.model->format, write.run);
  const uint64_t bytes = header.size() + pages * page_bytes;
  const std::string name =
      pages == 0 ? "" : shm::disk_file_name(write.model->format, write.run.name_space, write.run.pages.front().key);
  lock.lock();
  if (pages != 0 && bytes <= options_.budget_bytes && writing_ && !write.unwanted) {
    make_room(lock, bytes);
    lock.unlock();
    const int error = write_file(write, header, name, pages);
    lock.lock();
    if (error != 0) {
      writing_ = false;
      warn(lock, "prefixes are not written to disk any more: " + options_.directory + ": " + std::strerror(error));
    } else if (write.unwanted) {
      unlinkat(directory_, name.c_str(), 0);
    } else {
      if (const auto before = files_.find(name)) forget(before);
      auto file = std::make_shared<DiskFile>(
          DiskFile{name, bytes, write.run.name_space, header.size(), std::time(nullptr), write.run.depth, false});
      files_.add(file);
      write.model->texts.insert(file, write.run);
      counters_.pages_written += pages;
      allowance_bytes_ -= static_cast<double>(bytes);
    }
  }
  being_written_ = nullptr;
  write.busy = false;
  write.model->wake();
  for_engine_.notify_all();
}

/// 0, or an errno.
int DiskTier::write_file(const DiskWrite& write, std::span<const std::byte> header, const std::string& name,
                         size_t pages) {
  const auto start = Clock::now();
  const size_t page_bytes = write.model->page_bytes;
  shm::DiskFileWriter writer(directory_, name);
  if (const int error = writer.open()) return error;
  if (const int error = writer.write(header)) return error;
  for (size_t page = 0; page < pages; ++page) {
    if (const int error = writer.write({write.payload.get() + page * page_bytes, page_bytes})) return error;
    pace((page + 1) * page_bytes, start);
  }
  return writer.publish();
}

/// Sleeps until so many bytes were due.
void DiskTier::pace(uint64_t bytes, Clock::time_point since) {
  const double seconds = static_cast<double>(bytes) / static_cast<double>(options_.write_bytes_per_second);
  const auto due = since + std::chrono::duration_cast<Clock::duration>(std::chrono::duration<double>(seconds));
  std::unique_lock lock(mutex_);
  for_writer_.wait_until(lock, due, [&] { return hurry_ || quit_; });
}

/// Removes files until `bytes` more are within the budget.
void DiskTier::make_room(std::unique_lock<std::mutex>& lock, uint64_t bytes) {
  while (files_.bytes() + bytes > options_.budget_bytes) {
    const auto file = files_.oldest();
    if (!file) return;
    forget(file);
    lock.unlock();
    unlinkat(directory_, file->name.c_str(), 0);
    lock.lock();
  }
}

}  // namespace ellm::serve
