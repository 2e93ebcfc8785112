// Making the segment, and handing out its pages.
//
// Memory is taken when a page is first allocated, not when the segment is made: a budget of many gigabytes must neither
// delay the start nor be held before it is used (ftruncate of a memfd takes none, fallocate would take all). But memory
// that is not there when a mapped page is first touched is a SIGBUS in the middle of a kernel. So allocate() has the
// kernel put memory behind the page (MADV_POPULATE_WRITE), which reports failure like any other call; it also heeds
// NUMA policy and huge pages, as fallocate page by page would not, and spares the workers the page faults.
#include "shm/kv_pages.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>
#include <xxhash.h>

#include <algorithm>
#include <cassert>
#include <cerrno>
#include <cstring>
#include <new>
#include <system_error>
#include <utility>
#include <vector>

#include "shm/page_record.h"

#ifndef MFD_NOEXEC_SEAL
#define MFD_NOEXEC_SEAL 0x0008U   // Linux 6.3
#endif

namespace ellm::shm {
namespace {

constexpr size_t kHugePage = size_t{2} << 20;

[[noreturn]] void fail(int error, const std::string& what) {
  throw std::system_error(error, std::generic_category(), "KV segment: " + what);
}

/// Where the parts of a segment lie.
struct Plan {
  size_t page_bytes, payload_offset, segment_bytes;
};

/// Throws where the sizes make no segment. All arithmetic is checked: sizes come from a model file and the configuration.
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
  const size_t head_bytes = g.k_block_bytes() + g.v_block_bytes();   // < 2^40
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

class FileDescriptor {
 public:
  explicit FileDescriptor(int fd) : fd_(fd) {}
  FileDescriptor(FileDescriptor&& other) noexcept : fd_(std::exchange(other.fd_, -1)) {}
  ~FileDescriptor() {
    if (fd_ >= 0) close(fd_);
  }
  int get() const { return fd_; }

 private:
  int fd_;
};

/// A memfd whose size is final: whoever is given it later can trust its mapping not to shrink under it.
FileDescriptor make_file(size_t bytes) {
  int fd = memfd_create("ellm-kv", MFD_CLOEXEC | MFD_ALLOW_SEALING | MFD_NOEXEC_SEAL);
  if (fd < 0 && errno == EINVAL) fd = memfd_create("ellm-kv", MFD_CLOEXEC | MFD_ALLOW_SEALING);
  if (fd < 0) fail(errno, "memfd_create");
  FileDescriptor file(fd);
  if (ftruncate(fd, static_cast<off_t>(bytes)) != 0) fail(errno, "a size of " + std::to_string(bytes >> 20) + " MiB");
  if (fcntl(fd, F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL) != 0) fail(errno, "sealing its size");
  return file;
}

/// The whole segment in this process.
class Mapping {
 public:
  Mapping(int fd, size_t bytes) : bytes_(bytes) {
    void* data = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    if (data == MAP_FAILED) fail(errno, "mapping " + std::to_string(bytes >> 20) + " MiB");
    data_ = static_cast<std::byte*>(data);
    if (madvise(data, bytes, MADV_DONTDUMP) != 0) {   // prompts never reach a core dump
      const int error = errno;
      munmap(data, bytes);
      fail(error, "excluding it from core dumps");
    }
  }
  Mapping(const Mapping&) = delete;
  ~Mapping() { munmap(data_, bytes_); }
  std::byte* data() const { return data_; }

 private:
  std::byte* data_;
  size_t bytes_;
};

/// Puts memory behind a range of the mapping. Returns an errno or 0.
int populate(int fd, std::byte* base, size_t offset, size_t bytes) {
  const size_t page = static_cast<size_t>(sysconf(_SC_PAGESIZE));
  const size_t first = offset / page * page, last = (offset + bytes + page - 1) / page * page;
  if (madvise(base + first, last - first, MADV_POPULATE_WRITE) == 0) return 0;
  if (errno != EINVAL) return errno;
  return fallocate(fd, 0, static_cast<off_t>(offset), static_cast<off_t>(bytes)) == 0 ? 0 : errno;   // before Linux 5.14
}

}  // namespace

struct KvPages::Impl {
  Impl(const StoreOptions& options, const Plan& plan);
  void write_header(const StoreOptions& options);
  PageRecordData& record(PageId page) const {
    assert(page < pages);
    return reinterpret_cast<PageRecordData*>(mapping.data() + sizeof(SegmentHeaderData))[page];
  }
  std::byte* payload(PageId page) const {
    assert(page < pages);
    return mapping.data() + plan.payload_offset + page * plan.page_bytes;
  }

  PageGeometry geometry;
  Plan plan;
  uint32_t pages;
  FileDescriptor file;            // stays open: the segment outlives this process through it
  Mapping mapping;
  bool locked = false;
  std::vector<PageId> free;       // a stack, so that pages which have memory are used again first
  std::vector<bool> populated;    // pages that have memory
  uint32_t populated_pages = 0;
};

KvPages::Impl::Impl(const StoreOptions& options, const Plan& plan)
    : geometry(options.geometry), plan(plan), pages(options.pages), file(make_file(plan.segment_bytes)),
      mapping(file.get(), plan.segment_bytes), populated(options.pages) {
  std::byte* payload = mapping.data() + plan.payload_offset;
  madvise(payload, plan.segment_bytes - plan.payload_offset, MADV_HUGEPAGE);   // where the administrator allows them
  if (options.lock) locked = mlock2(mapping.data(), plan.segment_bytes, MLOCK_ONFAULT) == 0;
  const size_t records_end = sizeof(SegmentHeaderData) + size_t{pages} * sizeof(PageRecordData);
  if (const int error = populate(file.get(), mapping.data(), 0, records_end)) fail(error, "memory for its records");
  free.reserve(pages);
  for (PageId page = pages; page > 0; --page) free.push_back(page - 1);
  write_header(options);
}

void KvPages::Impl::write_header(const StoreOptions& options) {
  auto* header = new (mapping.data()) SegmentHeaderData{};
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
  auto impl = std::make_unique<Impl>(options, plan_of(options));
  return std::unique_ptr<KvPages>(new KvPages(std::move(impl)));
}

const PageGeometry& KvPages::geometry() const { return impl_->geometry; }
uint32_t KvPages::total_pages() const { return impl_->pages; }
uint32_t KvPages::free_pages() const { return static_cast<uint32_t>(impl_->free.size()); }
uint32_t KvPages::populated_pages() const { return impl_->populated_pages; }
bool KvPages::locked() const { return impl_->locked; }

std::optional<PageId> KvPages::allocate() {
  if (impl_->free.empty()) return std::nullopt;
  const PageId page = impl_->free.back();
  if (!impl_->populated[page]) {
    const auto offset = static_cast<size_t>(impl_->payload(page) - impl_->mapping.data());
    if (populate(impl_->file.get(), impl_->mapping.data(), offset, impl_->plan.page_bytes) != 0) return std::nullopt;
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
  record.state.store(PageState::free, std::memory_order_release);
  impl_->free.push_back(page);
}

void KvPages::seal(PageId page, uint64_t name_space, const PageKey& parent, std::span<const uint32_t> tokens,
                   uint64_t last_use) {
  PageRecordData& record = impl_->record(page);
  assert(record.state.load(std::memory_order_relaxed) == PageState::filling);
  assert(!tokens.empty() && tokens.size() <= kPageTokens);
  const PageKey key = page_key(parent, name_space, tokens);
  record.n_tokens = static_cast<uint16_t>(tokens.size());
  record.name_space = name_space;
  record.key[0] = key.low, record.key[1] = key.high;
  record.parent_key[0] = parent.low, record.parent_key[1] = parent.high;
  record.checksum = XXH3_64bits(impl_->payload(page), impl_->plan.page_bytes);
  record.last_use = last_use;
  std::copy(tokens.begin(), tokens.end(), record.tokens);
  record.state.store(PageState::sealed, std::memory_order_release);
}

void KvPages::touch(PageId page, uint64_t last_use) { impl_->record(page).last_use = last_use; }

void KvPages::copy(PageId from, PageId to, uint32_t tokens) {
  assert(from != to && tokens <= kPageTokens);
  const PageGeometry& g = impl_->geometry;
  const std::byte* source = impl_->payload(from);
  std::byte* target = impl_->payload(to);
  const auto copy_rows = [&](const TokenRows& piece) {
    for (size_t row = 0; row < piece.rows; ++row) {
      std::memcpy(target, source, tokens * piece.token_bytes);
      source += kPageTokens * piece.token_bytes;
      target += kPageTokens * piece.token_bytes;
    }
  };
  for (size_t block = size_t{g.layers} * g.kv_heads; block > 0; --block) {   // K and V take turns: geometry.h
    for (const TokenRows& piece : g.k_rows()) copy_rows(piece);
    for (const TokenRows& piece : g.v_rows()) copy_rows(piece);
  }
}

const PageRecordData& KvPages::record(PageId page) const { return impl_->record(page); }
std::byte* KvPages::payload(PageId page) { return impl_->payload(page); }
const std::byte* KvPages::payload(PageId page) const { return impl_->payload(page); }

}  // namespace ellm::shm
