// Making a segment or taking one over, and handing out its pages.
//
// What an earlier process left is believed as far as it proves itself: the header must say in every field what ours
// would, a record's key must be the hash of what the record says, and a page's payload must have its checksum when it
// is first used again. Everything else is freed.
#include "shm/kv_pages.h"

#include <sys/mman.h>
#include <unistd.h>
#include <xxhash.h>

#include <algorithm>
#include <cassert>
#include <cstring>
#include <new>
#include <optional>
#include <system_error>
#include <thread>
#include <utility>
#include <vector>

#include "shm/huge_pages.h"
#include "shm/page_checks.h"
#include "shm/page_record.h"
#include "shm/segment.h"

namespace ellm::shm {
namespace {

[[noreturn]] void fail(int error, const std::string& what) {
  throw std::system_error(error, std::generic_category(), "KV segment: " + what);
}

/// Where the parts of a segment lie.
struct Plan {
  size_t page_bytes, payload_offset, segment_bytes;
};

/// Throws where the sizes make no segment. All arithmetic is checked: sizes come from a model file and the
/// configuration.
Plan plan_of(const StoreOptions& options) {
  const PageGeometry& g = options.geometry;
  if (g.layers == 0 || g.kv_heads == 0 || g.head_dim == 0 || options.pages == 0)
    fail(EINVAL, "layers, KV heads, head size and pages must not be 0");
  if (options.fingerprint.size() > kMaxFingerprintBytes)
    fail(EINVAL, "a fingerprint of " + std::to_string(options.fingerprint.size()) + " bytes, at most " +
                     std::to_string(kMaxFingerprintBytes));
  const size_t records = size_t{options.pages} * sizeof(PageRecordData);
  Plan plan{};
  plan.payload_offset = (sizeof(SegmentHeaderData) + records + kHugePage - 1) / kHugePage * kHugePage;
  size_t payload = 0;
  off_t as_file_size = 0;
  const size_t head_bytes = g.k_block_bytes() + g.v_block_bytes();  // < 2^40
  if (__builtin_mul_overflow(head_bytes, size_t{g.layers}, &plan.page_bytes) ||
      __builtin_mul_overflow(plan.page_bytes, size_t{g.kv_heads}, &plan.page_bytes) ||
      __builtin_mul_overflow(plan.page_bytes, size_t{options.pages}, &payload) ||
      __builtin_add_overflow(plan.payload_offset, payload, &plan.segment_bytes) ||
      __builtin_add_overflow(plan.segment_bytes, size_t{0}, &as_file_size))
    fail(EOVERFLOW, std::to_string(options.pages) + " pages of this model are more than a file can hold");
  const size_t machine = static_cast<size_t>(sysconf(_SC_PHYS_PAGES)) * static_cast<size_t>(sysconf(_SC_PAGESIZE));
  if (plan.segment_bytes > machine)
    fail(ENOMEM, std::to_string(plan.segment_bytes >> 20) + " MiB wanted, the machine has " +
                     std::to_string(machine >> 20) + " MiB");
  return plan;
}

/// A field of a header in which an earlier segment differs from the one wanted; null: none.
const char* difference(const SegmentHeaderData& header, const StoreOptions& options, const Plan& plan) {
  const PageGeometry& g = options.geometry;
  if (header.magic.load(std::memory_order_acquire) != kSegmentMagic) return "it is no whole segment";
  if (header.layout_version != kLayoutVersion) return "its layout is another version's";
  if (header.fingerprint_bytes != options.fingerprint.size() ||
      std::memcmp(header.fingerprint, options.fingerprint.data(), options.fingerprint.size()) != 0)
    return "it is of another model or setting";
  if (header.layers != g.layers || header.kv_heads != g.kv_heads || header.head_dim != g.head_dim ||
      header.k_type != static_cast<uint8_t>(g.k_type) || header.v_type != static_cast<uint8_t>(g.v_type))
    return "its pages have another shape";
  if (header.pages != options.pages) return "its size does not fit the memory for keys and values";
  if (header.record_bytes != sizeof(PageRecordData) || header.segment_bytes != plan.segment_bytes ||
      header.records_offset != sizeof(SegmentHeaderData) || header.payload_offset != plan.payload_offset ||
      header.page_bytes != plan.page_bytes)
    return "its header is damaged";
  return nullptr;
}

/// Whether a segment of these options is as long as `bytes`.
bool fits(const StoreOptions& options, size_t bytes) {
  try {
    return plan_of(options).segment_bytes == bytes;
  } catch (const std::system_error&) {
    return false;
  }
}

/// What an earlier process left under the name or in the descriptor, if anything.
std::optional<Segment> earlier(const StoreOptions& options) {
  if (options.fd >= 0) return Segment::adopt(options.fd);
  if (!options.name.empty()) return Segment::open(options.name);
  return std::nullopt;
}

}  // namespace

struct KvPages::Impl {
  Impl(const StoreOptions& options, const Plan& plan, Segment&& segment, bool taken_over);
  void write_header(const StoreOptions& options);
  void keep_sealed();
  void find_memory();
  bool has_its_checksum(PageId page) const {
    return XXH3_64bits(payload(page), plan.page_bytes) == record(page).checksum;
  }
  PageRecordData& record(PageId page) const {
    assert(page < pages);
    return reinterpret_cast<PageRecordData*>(segment.data() + sizeof(SegmentHeaderData))[page];
  }
  size_t payload_offset(PageId page) const {
    assert(page < pages);
    return plan.payload_offset + page * plan.page_bytes;
  }
  std::byte* payload(PageId page) const { return segment.data() + payload_offset(page); }

  PageGeometry geometry;
  Plan plan;
  uint32_t pages;
  Segment segment;
  bool locked = false, taken_over;
  std::string refused;
  std::vector<PageId> free;     // a stack, so that pages which have memory are used again first
  std::vector<bool> populated;  // pages that have memory
  uint32_t populated_pages = 0;
  std::jthread mapper;               // maps what an earlier process left; the last members, so that they end first
  std::optional<PageChecks> checks;  // of what it sealed
};

KvPages::Impl::Impl(const StoreOptions& options, const Plan& plan, Segment&& s, bool taken_over)
    : geometry(options.geometry), plan(plan), pages(options.pages), segment(std::move(s)), taken_over(taken_over),
      populated(options.pages) {
  if (options.lock) locked = mlock2(segment.data(), plan.segment_bytes, MLOCK_ONFAULT) == 0;
  const size_t records_end = sizeof(SegmentHeaderData) + size_t{pages} * sizeof(PageRecordData);
  if (const int error = segment.populate(0, records_end)) fail(error, "memory for its records");
  free.reserve(pages);
  if (taken_over) {
    keep_sealed();
  } else {
    for (PageId page = pages; page > 0; --page) free.push_back(page - 1);
    write_header(options);
  }
}

/// Which pages have memory; it is mapped behind the back of whoever makes the first request, in small pages a third of
/// a second for a gigabyte, in huge ones a hundredth of that.
void KvPages::Impl::find_memory() {
  auto ranges = segment.memory(plan.payload_offset, plan.segment_bytes);
  for (const auto& [first, end] : ranges) {
    const size_t payload_first = first - plan.payload_offset, payload_end = end - plan.payload_offset;
    for (size_t page = (payload_first + plan.page_bytes - 1) / plan.page_bytes;
         (page + 1) * plan.page_bytes <= payload_end; ++page) {
      populated[page] = true;
      ++populated_pages;
    }
  }
  if (ranges.empty()) return;
  mapper = std::jthread([this, ranges = std::move(ranges)](const std::stop_token& stop) {
    constexpr size_t kStep = size_t{16} << 20;
    for (const auto& [first, end] : ranges) {
      for (size_t at = first; at < end && !stop.stop_requested(); at += kStep)
        madvise(segment.data() + at, std::min(kStep, end - at),
                MADV_POPULATE_READ);  // where it fails: one by one, later
    }
  });
}

/// Frees every page but those whose record proves itself.
void KvPages::Impl::keep_sealed() {
  ++reinterpret_cast<SegmentHeaderData*>(segment.data())->epoch;
  find_memory();
  for (PageId page = pages; page > 0; --page) {
    PageRecordData& r = record(page - 1);
    if (r.state.load(std::memory_order_acquire) == PageState::sealed && r.n_tokens > 0 && r.n_tokens <= kPageTokens &&
        page_key({r.parent_key[0], r.parent_key[1]}, r.name_space, std::span(r.tokens, r.n_tokens)) ==
            PageKey{r.key[0], r.key[1]})
      continue;
    r.state.store(PageState::free, std::memory_order_release);
    free.push_back(page - 1);
  }
  // Those that have memory on top.
  std::stable_partition(free.begin(), free.end(), [this](PageId page) { return !populated[page]; });
  std::vector<PageId> sealed;
  for (PageId page = 0; page < pages; ++page) {
    if (record(page).state.load(std::memory_order_relaxed) == PageState::sealed) sealed.push_back(page);
  }
  std::stable_sort(sealed.begin(), sealed.end(),
                   [this](PageId a, PageId b) { return record(a).last_use > record(b).last_use; });
  checks.emplace(std::move(sealed), pages, [this](PageId page) { return has_its_checksum(page); });
}

void KvPages::Impl::write_header(const StoreOptions& options) {
  auto* header = new (segment.data()) SegmentHeaderData{};
  header->layout_version = kLayoutVersion;
  header->record_bytes = sizeof(PageRecordData);
  header->epoch = 1;
  header->segment_bytes = plan.segment_bytes;
  header->records_offset = sizeof(SegmentHeaderData);
  header->payload_offset = plan.payload_offset;
  header->page_bytes = plan.page_bytes;
  header->pages = pages;
  header->layers = geometry.layers;
  header->kv_heads = geometry.kv_heads;
  header->head_dim = geometry.head_dim;
  header->k_type = static_cast<uint8_t>(geometry.k_type);
  header->v_type = static_cast<uint8_t>(geometry.v_type);
  header->fingerprint_bytes = static_cast<uint32_t>(options.fingerprint.size());
  std::memcpy(header->fingerprint, options.fingerprint.data(), options.fingerprint.size());
  header->magic.store(kSegmentMagic, std::memory_order_release);
}

KvPages::KvPages(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
KvPages::~KvPages() = default;

std::unique_ptr<KvPages> KvPages::create(const StoreOptions& options) {
  std::string refused;
  if (auto segment = earlier(options)) {
    StoreOptions there = options;
    const char* why = "it is no whole segment";
    if (segment->bytes() >= sizeof(SegmentHeaderData)) {
      const auto& header = *reinterpret_cast<const SegmentHeaderData*>(segment->data());
      if (header.pages >= std::max(1u, options.least_pages) && header.pages <= options.most_pages)
        there.pages = header.pages;
      // Nothing of the header is believed before the file is as long as it must be: pages beyond its end are a SIGBUS.
      const bool long_enough = fits(there, segment->bytes());
      why = difference(header, there, long_enough ? plan_of(there) : Plan{});
    }
    if (why == nullptr) {
      auto impl = std::make_unique<Impl>(there, plan_of(there), std::move(*segment), true);
      return std::unique_ptr<KvPages>(new KvPages(std::move(impl)));
    }
    refused = why;
    if (options.fd < 0) Segment::remove(options.name);
  }
  const Plan plan = plan_of(options);
  auto impl = std::make_unique<Impl>(options, plan, Segment::make(options.name, plan.segment_bytes), false);
  impl->refused = std::move(refused);
  return std::unique_ptr<KvPages>(new KvPages(std::move(impl)));
}

const PageGeometry& KvPages::geometry() const { return impl_->geometry; }
uint32_t KvPages::total_pages() const { return impl_->pages; }
uint32_t KvPages::free_pages() const { return static_cast<uint32_t>(impl_->free.size()); }
uint32_t KvPages::populated_pages() const { return impl_->populated_pages; }
bool KvPages::locked() const { return impl_->locked; }
bool KvPages::taken_over() const { return impl_->taken_over; }
const std::string& KvPages::refused() const { return impl_->refused; }
int KvPages::fd() const { return impl_->segment.fd(); }

std::optional<PageId> KvPages::allocate() {
  if (impl_->free.empty()) return std::nullopt;
  const PageId page = impl_->free.back();
  if (!impl_->populated[page]) {
    if (impl_->segment.populate_huge_pages(impl_->payload_offset(page), impl_->plan.page_bytes) != 0)
      return std::nullopt;
    impl_->populated[page] = true;
    ++impl_->populated_pages;
  }
  impl_->free.pop_back();
  PageRecordData& record = impl_->record(page);
  assert(record.state.load(std::memory_order_relaxed) == PageState::free);
  new (&record) PageRecordData{};
  record.state.store(PageState::filling, std::memory_order_release);
  return page;
}

void KvPages::release(PageId page) {
  PageRecordData& record = impl_->record(page);
  assert(record.state.load(std::memory_order_relaxed) != PageState::free);
  if (impl_->checks) impl_->checks->settle(page);
  record.state.store(PageState::free, std::memory_order_release);
  impl_->free.push_back(page);
}

void KvPages::seal(PageId page, uint64_t name_space, const PageKey& parent, std::span<const uint32_t> tokens,
                   uint64_t last_use, std::optional<uint64_t> checksum) {
  PageRecordData& record = impl_->record(page);
  assert(record.state.load(std::memory_order_relaxed) == PageState::filling);
  assert(!tokens.empty() && tokens.size() <= kPageTokens);
  const PageKey key = page_key(parent, name_space, tokens);
  record.n_tokens = static_cast<uint16_t>(tokens.size());
  record.name_space = name_space;
  record.key[0] = key.low, record.key[1] = key.high;
  record.parent_key[0] = parent.low, record.parent_key[1] = parent.high;
  record.checksum = checksum ? *checksum : XXH3_64bits(impl_->payload(page), impl_->plan.page_bytes);
  record.last_use = last_use;
  std::copy(tokens.begin(), tokens.end(), record.tokens);
  record.state.store(PageState::sealed, std::memory_order_release);
}

void KvPages::touch(PageId page, uint64_t last_use) { impl_->record(page).last_use = last_use; }

void KvPages::set_pinned(PageId page, bool pinned) { impl_->record(page).pinned = pinned ? 1 : 0; }

void KvPages::copy(PageId from, PageId to, uint32_t tokens) {
  assert(from != to && tokens <= kPageTokens);
  const PageGeometry& g = impl_->geometry;
  const std::byte* source = impl_->payload(from);
  std::byte* target = impl_->payload(to);
  const auto copy_rows = [&](const TokenRows& piece) {
    const size_t last = std::min<size_t>(tokens, piece.tokens);
    for (size_t first = 0; first < last; first += piece.group) {
      const size_t count = std::min(last - first, piece.group);
      for (size_t row = 0; row < piece.rows; ++row) {
        const size_t at = piece.offset(row, first);
        std::memcpy(target + at, source + at, count * piece.token_bytes);
      }
    }
    source += piece.bytes();
    target += piece.bytes();
  };
  for (size_t block = size_t{g.layers} * g.kv_heads; block > 0; --block) {  // K and V take turns: geometry.h
    for (const TokenRows& piece : g.k_rows()) copy_rows(piece);
    for (const TokenRows& piece : g.v_rows()) copy_rows(piece);
  }
}

bool KvPages::intact(PageId page) const {
  return impl_->checks ? impl_->checks->is_intact(page) : impl_->has_its_checksum(page);
}

const PageRecordData& KvPages::record(PageId page) const { return impl_->record(page); }
std::byte* KvPages::payload(PageId page) { return impl_->payload(page); }
const std::byte* KvPages::payload(PageId page) const { return impl_->payload(page); }

}  // namespace ellm::shm
