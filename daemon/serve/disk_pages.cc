// See disk_pages.h.
#include "daemon/serve/disk_pages.h"

#include <algorithm>
#include <cstring>
#include <new>
#include <utility>

#include "shm/page_record.h"

namespace ellm::serve {
namespace {

using shm::kNoPage;
using shm::PageId;

constexpr uint64_t kFetchBytes = 64u << 20;  // of one fetch; more follows when it is there
constexpr uint32_t kMostFetchedPages = 256;
constexpr uint64_t kFileBytes = 16u << 20;
constexpr uint64_t kCopyBytes = 2u << 20;        // between two steps: a third of a millisecond
constexpr std::chrono::seconds kLookFor{2};      // that a request waits for the list of what is on disk
constexpr std::chrono::seconds kNoRate{10};      // that a fetch may take before a prompt's speed is known
constexpr std::chrono::milliseconds kLeast{20};  // that it may always take
constexpr std::chrono::seconds kHangs{1};

uint32_t pages_in(uint64_t bytes, uint64_t page_bytes, uint32_t most) {
  return static_cast<uint32_t>(std::clamp<uint64_t>(bytes / page_bytes, 1, most));
}
uint32_t fetched_pages(uint64_t page_bytes) { return pages_in(kFetchBytes, page_bytes, kMostFetchedPages); }
uint32_t written_pages(uint64_t page_bytes) { return pages_in(kFileBytes, page_bytes, shm::kMostDiskPages); }

}  // namespace

std::unique_ptr<DiskPages> DiskPages::make(std::shared_ptr<DiskTier> tier, const std::string& fingerprint,
                                           shm::KvPages& kv, uint32_t fetches, std::function<void()> wake) try {
  return std::unique_ptr<DiskPages>(new DiskPages(tier, fingerprint, kv, fetches, std::move(wake)));
} catch (const std::bad_alloc&) {
  tier->no_memory();
  return nullptr;
}

DiskPages::DiskPages(std::shared_ptr<DiskTier> tier, const std::string& fingerprint, shm::KvPages& kv, uint32_t fetches,
                     std::function<void()> wake)
    : tier_(std::move(tier)), kv_(kv), page_bytes_(kv.geometry().page_bytes()),
      most_fetched_(fetched_pages(page_bytes_)), most_written_(written_pages(page_bytes_)), ring_(kv.total_pages()) {
  for (uint32_t i = 0; i < fetches; ++i) {
    auto& fetch = fetches_.emplace_back(std::make_unique<DiskFetch>());
    fetch->places.reserve(most_fetched_);
    fetch->pages.reserve(most_fetched_);
    fetch->payloads.reserve(most_fetched_);
  }
  chain_.reserve(kv.total_pages());
  keys_.reserve(kv.total_pages());
  missing_.reserve(kv.total_pages());
  write_.run.pages.reserve(most_written_);
  write_.payload.reset(new std::byte[most_written_ * page_bytes_]);  // has memory when it is used
  model_ = tier_->attach({kv.geometry(), fingerprint}, std::move(wake));
  for (const auto& fetch : fetches_) fetch->model = model_;
  write_.model = model_;
}

uint64_t DiskPages::memory_bytes(const shm::PageGeometry& geometry, uint32_t fetches) {
  const uint64_t page = geometry.page_bytes(), written = written_pages(page);
  const uint64_t slot = sizeof(DiskPlace) + sizeof(shm::PageId) + sizeof(std::byte*);
  // The writer makes a file's header of the pages' records.
  return written * (page + sizeof(shm::DiskPage) + sizeof(shm::DiskPageRecordData)) +
         fetches * (sizeof(DiskFetch) + fetched_pages(page) * slot);
}

DiskPages::~DiskPages() { tier_->detach(*model_, fetches_, write_); }

bool DiskPages::is_looking() const {
  return !model_->known.load(std::memory_order_relaxed) && Clock::now() - attached_ < kLookFor;
}

DiskFetch* DiskPages::plan(uint64_t name_space, const shm::PageKey& parent, std::span<const uint32_t> tokens,
                           uint32_t known, uint32_t most_pages) {
  const auto free = std::find_if(fetches_.begin(), fetches_.end(), [](const auto& fetch) { return !fetch->taken; });
  if (free == fetches_.end()) return nullptr;
  DiskFetch& fetch = **free;
  const uint32_t there = tier_->reader().plan(fetch, name_space, parent, tokens, std::min(most_pages, most_fetched_));
  const uint32_t gain = std::min(there, static_cast<uint32_t>(tokens.size()) - 1) - std::min(there, known);
  const bool timed = rows_per_second_ != 0 && !tier_->options().read_always;
  const double seconds = timed ? gain / rows_per_second_ : 1e9;
  if (there <= known || gain == 0 || !tier_->reader().reads_within(fetch.places.size() * page_bytes_, seconds)) {
    fetch.places.clear();
    return nullptr;
  }
  const auto computing =
      std::chrono::duration_cast<Clock::duration>(std::chrono::duration<double>(timed ? seconds : 0));
  fetch.give_up = Clock::now() + (timed ? std::max(Clock::duration(kLeast), computing) : kNoRate);
  fetch.taken = true;
  return &fetch;
}

void DiskPages::start(DiskFetch& fetch) {
  if (fetch.pages.empty()) return give_back(fetch);
  fetch.places.resize(fetch.pages.size());
  for (const PageId page : fetch.pages) fetch.payloads.push_back(kv_.payload(page));
  fetch.started = Clock::now();
  tier_->reader().submit(fetch);
}

bool DiskPages::settled(DiskFetch& fetch) {
  if (fetch.finished.load(std::memory_order_acquire)) return true;
  if (Clock::now() > fetch.give_up && !fetch.abandoned.exchange(true)) tier_->reader().note_slow(fetch);
  return false;
}

bool DiskPages::hangs(const DiskFetch& fetch) const { return Clock::now() > fetch.give_up + kHangs; }

void DiskPages::give_back(DiskFetch& fetch) {
  fetch.places.clear();
  fetch.pages.clear();
  fetch.payloads.clear();
  fetch.taken = fetch.orphan = false;
}

void DiskPages::abandon(DiskFetch& fetch) { fetch.abandoned = fetch.orphan = true; }

void DiskPages::release_orphans(shm::PageStore& store) {
  for (const auto& fetch : fetches_) {
    if (!fetch->orphan || !fetch->finished.load(std::memory_order_acquire)) continue;
    for (const PageId page : fetch->pages) store.release(page);
    give_back(*fetch);
  }
}

void DiskPages::computed(uint32_t rows, double step_ms) {
  if (rows == 0 || step_ms <= 0) return;
  const double rate = rows / step_ms * 1000;
  rows_per_second_ = rows_per_second_ == 0 ? rate : rows_per_second_ + (rate - rows_per_second_) / 8;
}

void DiskPages::ended(PageId leaf, uint32_t used_again) {
  const shm::PageRecordData& record = kv_.record(leaf);
  const size_t at = (head_ + resting_) % ring_.size();
  ring_[at] = {leaf, {record.key[0], record.key[1]}, Clock::now() + tier_->options().rest, used_again};
  if (resting_ < ring_.size()) ++resting_;
  else head_ = (head_ + 1) % ring_.size();  // the oldest is lost
}

std::optional<Clock::time_point> DiskPages::tend(shm::PageStore& store, Clock::time_point now, bool hurry) {
  release_orphans(store);
  if (write_.busy) return std::nullopt;  // the tier wakes us
  if (std::exchange(submitted_, false)) write_.run.pages.clear();
  if (at_ == chain_.size()) {
    if (resting_ == 0) return std::nullopt;
    const Text& text = ring_[head_];
    if (text.due > now && !hurry) return text.due;
    head_ = (head_ + 1) % ring_.size();
    --resting_;
    begin(store, text);
  }
  return copy_pages(hurry) ? std::optional(now) : std::nullopt;
}

/// Nothing where the text has been given up, or lies beneath a longer one that took its last page's place.
void DiskPages::begin(const shm::PageStore& store, const Text& text) {
  chain_.clear();
  keys_.clear();
  missing_.clear();
  at_ = 0;
  const auto& leaf = kv_.record(text.leaf);
  if (leaf.state.load(std::memory_order_relaxed) != shm::PageState::sealed || store.key(text.leaf) != text.key) return;
  for (PageId page = text.leaf; page != kNoPage; page = store.parent(page)) chain_.push_back(page);
  std::reverse(chain_.begin(), chain_.end());
  for (const PageId page : chain_) keys_.push_back(store.key(page));
  tier_->writer().note_use(*model_, kv_, chain_, missing_);
  const size_t wanted = tier_->writer().wants(false)  ? chain_.size()
                        : tier_->writer().wants(true) ? text.used_again
                                                      : 0;
  for (size_t i = wanted; i < missing_.size(); ++i) missing_[i] = false;
}

/// Whether the page is what it was when the text began to be copied.
bool DiskPages::is_same(size_t at) const {
  const auto& record = kv_.record(chain_[at]);
  return record.state.load(std::memory_order_relaxed) == shm::PageState::sealed &&
         shm::PageKey{record.key[0], record.key[1]} == keys_[at];
}

/// True: there is more to do at once.
bool DiskPages::copy_pages(bool hurry) {
  uint64_t copied = 0;
  auto& staged = write_.run.pages;
  for (; at_ < chain_.size(); ++at_) {
    if (!missing_[at_]) {
      if (!staged.empty()) return submit(), false;
      continue;
    }
    if (!is_same(at_)) {  // given up meanwhile
      staged.clear();
      at_ = chain_.size();
      return true;
    }
    if (copied >= kCopyBytes && !hurry) return true;
    copy_page(at_);
    copied += page_bytes_;
    if (staged.size() == most_written_) return ++at_, submit(), false;
  }
  if (staged.empty()) return true;
  return submit(), false;
}

void DiskPages::copy_page(size_t at) {
  const auto& record = kv_.record(chain_[at]);
  shm::DiskRun& run = write_.run;
  if (run.pages.empty()) {
    run.name_space = record.name_space;
    run.parent = {record.parent_key[0], record.parent_key[1]};
    run.depth = static_cast<uint32_t>(at);
  }
  std::memcpy(write_.payload.get() + run.pages.size() * page_bytes_, kv_.payload(chain_[at]), page_bytes_);
  shm::DiskPage& page = run.pages.emplace_back();  // within its capacity
  page.key = keys_[at];
  page.checksum = record.checksum;
  page.n_tokens = record.n_tokens;
  std::copy_n(record.tokens, shm::kPageTokens, page.tokens.begin());
  touched_ = std::max(touched_.load(), static_cast<uint32_t>(run.pages.size()));
}

void DiskPages::submit() {
  submitted_ = true;
  tier_->writer().submit(write_);
}

void DiskPages::flush(shm::PageStore& store, Clock::time_point until) {
  tier_->writer().hurry();
  for (auto now = Clock::now(); now < until; now = Clock::now()) {
    if (write_.busy && !tier_->writer().await(write_, until)) return;
    if (!tend(store, now, true) && !write_.busy && resting_ == 0 && at_ == chain_.size()) return;
  }
}

}  // namespace ellm::serve
