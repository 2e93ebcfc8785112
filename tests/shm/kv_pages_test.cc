// The segment as the kernel sees it (/proc/self), and the allocation of its pages.
#include "shm/kv_pages.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <linux/audit.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <filesystem>
#include <random>
#include <set>
#include <system_error>

#include "shm/page_record.h"
#include "tests/support/file_limit.h"
#include "tests/support/smaps.h"

using namespace ellm::shm;
using ellm::tests::smaps;

namespace {

StoreOptions options(uint32_t pages) {
  StoreOptions o;
  o.geometry = {4, 2, 64, KvType::f16, KvType::int8};
  o.pages = pages;
  o.fingerprint = "weights 0123 tokenizer 4567";
  return o;
}

/// This process's descriptor of the one KV segment there is.
int segment_fd() {
  for (const auto& entry : std::filesystem::directory_iterator("/proc/self/fd")) {
    std::error_code error;
    if (std::filesystem::read_symlink(entry.path(), error).string().rfind("/memfd:ellm-kv", 0) == 0)
      return std::stoi(entry.path().filename());
  }
  return -1;
}

/// Bytes of memory that the segment holds.
size_t resident_bytes() {
  struct stat info{};
  fstat(segment_fd(), &info);
  return static_cast<size_t>(info.st_blocks) * 512;
}

TEST(KvPages, HandsOutEveryPageOnce) {
  auto store = KvPages::create(options(17));
  EXPECT_EQ(store->total_pages(), 17u);
  EXPECT_EQ(store->free_pages(), 17u);
  std::set<PageId> taken;
  for (uint32_t i = 0; i < 17; ++i) {
    const auto page = store->allocate();
    ASSERT_TRUE(page);
    EXPECT_LT(*page, 17u);
    EXPECT_TRUE(taken.insert(*page).second);
    EXPECT_EQ(store->free_pages(), 16 - i);
  }
  EXPECT_FALSE(store->allocate());
  store->release(5);
  EXPECT_EQ(store->free_pages(), 1u);
  EXPECT_EQ(store->allocate(), std::optional<PageId>(5));
  EXPECT_FALSE(store->allocate());
}

/// Random allocations and releases against a set, and each page's bytes against the number written to it.
TEST(KvPages, PagesDoNotOverlapWhateverTheOrder) {
  auto store = KvPages::create(options(31));
  const size_t bytes = store->geometry().page_bytes();
  std::mt19937 random(7);
  std::vector<std::pair<PageId, unsigned char>> held;
  for (int step = 0; step < 3000; ++step) {
    if (random() % 2) {
      const auto page = store->allocate();
      ASSERT_EQ(page.has_value(), held.size() < 31);
      if (!page) continue;
      for (auto [other, mark] : held) ASSERT_NE(other, *page);
      const auto mark = static_cast<unsigned char>(random());
      std::memset(store->payload(*page), mark, bytes);
      held.emplace_back(*page, mark);
    } else if (!held.empty()) {
      std::swap(held[random() % held.size()], held.back());
      const auto [page, mark] = held.back();
      const std::byte* data = std::as_const(*store).payload(page);
      for (size_t i : {size_t{0}, bytes / 2, bytes - 1}) ASSERT_EQ(data[i], std::byte{mark});
      held.pop_back();
      store->release(page);
    }
    ASSERT_EQ(store->free_pages(), 31 - held.size());
  }
}

TEST(KvPages, PayloadIsAligned) {
  auto store = KvPages::create(options(3));
  for (PageId page = 0; page < 3; ++page) EXPECT_EQ(reinterpret_cast<uintptr_t>(store->payload(page)) % 64, 0u);
  EXPECT_EQ(store->payload(1) - store->payload(0), static_cast<ptrdiff_t>(store->geometry().page_bytes()));
}

/// What another process would find, through a mapping of its own.
TEST(KvPages, HeaderAndRecordsAreInTheSegment) {
  auto store = KvPages::create(options(9));
  const PageId page = *store->allocate();
  std::memset(store->payload(page), 0x5a, store->geometry().page_bytes());
  const PageId gone = *store->allocate();
  store->release(gone);

  const int fd = segment_fd();
  ASSERT_GE(fd, 0);
  struct stat info{};
  ASSERT_EQ(fstat(fd, &info), 0);
  const auto size = static_cast<size_t>(info.st_size);
  void* map = mmap(nullptr, size, PROT_READ, MAP_SHARED, fd, 0);
  ASSERT_NE(map, MAP_FAILED);
  const auto* bytes = static_cast<const std::byte*>(map);
  const auto& header = *reinterpret_cast<const SegmentHeaderData*>(bytes);
  EXPECT_EQ(header.magic.load(), kSegmentMagic);
  EXPECT_EQ(header.layout_version, kLayoutVersion);
  EXPECT_EQ(header.record_bytes, sizeof(PageRecordData));
  EXPECT_EQ(header.epoch, 1u);
  EXPECT_EQ(header.segment_bytes, size);
  EXPECT_EQ(header.pages, 9u);
  EXPECT_EQ(header.layers, 4u);
  EXPECT_EQ(header.kv_heads, 2u);
  EXPECT_EQ(header.head_dim, 64u);
  EXPECT_EQ(header.k_type, 0u);
  EXPECT_EQ(header.v_type, 1u);
  EXPECT_EQ(std::string(header.fingerprint, header.fingerprint_bytes), options(9).fingerprint);
  EXPECT_EQ(header.page_bytes, store->geometry().page_bytes());
  EXPECT_EQ(header.payload_offset + 9 * header.page_bytes, size);
  EXPECT_GE(header.payload_offset, header.records_offset + 9 * header.record_bytes);
  const auto* records = reinterpret_cast<const PageRecordData*>(bytes + header.records_offset);
  for (PageId i = 0; i < 9; ++i) {
    EXPECT_EQ(records[i].state.load(), i == page ? PageState::filling : PageState::free);
    EXPECT_EQ(records[i].n_tokens, 0u);
  }
  EXPECT_EQ(bytes[header.payload_offset + page * header.page_bytes], std::byte{0x5a});
  munmap(map, size);
}

TEST(KvPages, SizeIsSealedAndDescriptorPrivate) {
  auto store = KvPages::create(options(9));
  const int fd = segment_fd();
  ASSERT_GE(fd, 0);
  const int seals = fcntl(fd, F_GET_SEALS);
  EXPECT_EQ(seals & (F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL), F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL);
  EXPECT_NE(ftruncate(fd, 0), 0);
  EXPECT_NE(ftruncate(fd, 1 << 30), 0);
  EXPECT_NE(fcntl(fd, F_GETFD) & FD_CLOEXEC, 0);
}

TEST(KvPages, IsNotDumped) {
  auto store = KvPages::create(options(9));
  EXPECT_NE(smaps(store->payload(8), "VmFlags").find(" dd "), std::string::npos);  // VM_DONTDUMP
  EXPECT_NE(smaps(store->payload(8), "VmFlags").find(" sh "), std::string::npos);  // VM_SHARED
}

TEST(KvPages, MemoryIsTakenWhenAPageIsFirstAllocated) {
  for (bool lock : {false, true}) {
    StoreOptions o = options(1000);
    o.lock = lock;
    auto store = KvPages::create(o);
    const size_t page_bytes = store->geometry().page_bytes();
    if (resident_bytes() > 1000 * page_bytes / 2) GTEST_SKIP() << "shared memory of whole huge pages here";
    EXPECT_LT(resident_bytes(), (1 << 20) + 1000 * sizeof(PageRecordData));
    const size_t before = resident_bytes();
    const PageId page = *store->allocate();
    EXPECT_GE(resident_bytes(), before + page_bytes - 4096);  // there before anyone touches it
    store->release(page);
    const size_t used = resident_bytes();
    EXPECT_EQ(store->allocate(), std::optional<PageId>(page));  // and used again before another is taken
    EXPECT_EQ(resident_bytes(), used);
  }
}

TEST(KvPages, LocksIfItMay) {
  StoreOptions o = options(9);
  EXPECT_FALSE(KvPages::create(o)->locked());
  o.lock = true;
  auto store = KvPages::create(o);
  EXPECT_EQ(store->locked(), smaps(store->payload(0), "VmFlags").find(" lo ") != std::string::npos);
}

TEST(KvPages, GivesEverythingBack) {
  {
    auto store = KvPages::create(options(9));
  }
  EXPECT_EQ(segment_fd(), -1);
}

/// The error's number, or 0 when the segment was made.
int create_error(const StoreOptions& o, std::string* text = nullptr) {
  try {
    KvPages::create(o);
    return 0;
  } catch (const std::system_error& error) {
    if (text) *text = error.what();
    return error.code().value();
  }
}

TEST(KvPages, RefusesWhatIsNoSegment) {
  EXPECT_EQ(create_error(options(0)), EINVAL);
  StoreOptions o = options(1);
  o.geometry.layers = 0;
  EXPECT_EQ(create_error(o), EINVAL);
  o = options(1);
  o.fingerprint = std::string(kMaxFingerprintBytes, 'x');
  EXPECT_EQ(create_error(o), 0);
  o.fingerprint += 'x';
  EXPECT_EQ(create_error(o), EINVAL);
  o = options(~0u);
  o.geometry.layers = o.geometry.kv_heads = o.geometry.head_dim = ~0u;
  EXPECT_EQ(create_error(o), EOVERFLOW);
  EXPECT_EQ(segment_fd(), -1);
}

TEST(KvPages, ABudgetThatNoMachineHasIsRefusedWithTheSum) {
  std::string text;
  const StoreOptions o = options(~0u);  // 4 G pages of 49 KiB
  EXPECT_EQ(create_error(o, &text), ENOMEM);
  EXPECT_NE(text.find("MiB wanted"), std::string::npos) << text;
  EXPECT_EQ(segment_fd(), -1);
}

/// Runs `body` in a child and returns its exit code; -1 for a signal (a SIGBUS, say).
template <class Body>
int in_child(Body body) {
  const pid_t child = fork();
  if (child == 0) _exit(body());
  int status = 0;
  waitpid(child, &status, 0);
  return WIFEXITED(status) ? WEXITSTATUS(status) : -1;
}

TEST(KvPages, ALimitOnFilesIsAnErrorNotASignal) {
  const ellm::tests::FileLimit limit(1 << 20);
  EXPECT_EQ(create_error(options(100)), EFBIG);
}

/// From here on, the kernel has no memory to put behind a mapping (system calls answer so).
bool no_more_memory() {
  const uint32_t deny = SECCOMP_RET_ERRNO | ENOMEM;
  sock_filter filter[] = {
      BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(seccomp_data, nr)),
      BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_fallocate, 3, 0),
      BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_madvise, 0, 3),
      BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(seccomp_data, args[2])),
      BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, MADV_POPULATE_WRITE, 0, 1),
      BPF_STMT(BPF_RET | BPF_K, deny),
      BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
  };
  const sock_fprog program{sizeof(filter) / sizeof(filter[0]), filter};
  return prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) == 0 && prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &program) == 0;
}

TEST(KvPages, WithoutMemoryThereIsNoPageAndTheOthersGoOn) {
  const int code = in_child([] {
    auto store = KvPages::create(options(4));
    const auto first = store->allocate();
    if (!first) return 1;
    if (!no_more_memory()) return 77;
    if (store->allocate()) return 2;
    if (store->free_pages() != 3) return 3;
    store->payload(*first)[0] = std::byte{1};
    store->release(*first);
    if (store->allocate() != first) return 4;  // it has its memory
    return create_error(options(4)) == ENOMEM ? 0 : 5;
  });
  if (code == 77) GTEST_SKIP() << "no seccomp here";
  EXPECT_EQ(code, 0);
}

}  // namespace
