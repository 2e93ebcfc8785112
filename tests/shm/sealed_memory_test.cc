// Sealed memory: what a later process finds, what it refuses, and that nobody writes to it.
#include "shm/sealed_memory.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <chrono>
#include <cstddef>
#include <cstring>
#include <system_error>
#include <thread>

#include "shm/huge_pages.h"
#include "tests/support/refused_memory.h"

namespace ellm::shm {
namespace {

SealedOptions options(bool named) {
  SealedOptions o;
  o.fingerprint = "files 0123";
  o.bytes = 5'000'000;
  o.checks = 3;
  if (named) o.name = kWeightsPrefix + std::string("test.") + std::to_string(getpid());
  return o;
}

std::byte value_at(size_t i) { return static_cast<std::byte>(i * 7 + i / 251); }

SealedMemory filled(const SealedOptions& o) {
  SealedMemory memory = SealedMemory::make(o);
  EXPECT_EQ(memory.populate(0, memory.bytes()), 0);
  for (size_t i = 0; i < o.bytes; ++i) memory.data()[i] = value_at(i);
  for (size_t i = 0; i < o.checks; ++i) memory.checks()[i] = i + 100;
  return memory;
}

void expect_filled(const SealedMemory& memory) {
  for (size_t i = 0; i < memory.bytes(); ++i) ASSERT_EQ(memory.data()[i], value_at(i)) << i;
  for (size_t i = 0; i < memory.checks().size(); ++i) EXPECT_EQ(memory.checks()[i], i + 100);
}

struct Named : ::testing::Test {
  ~Named() override { SealedMemory::remove(o.name); }
  SealedOptions o = options(true);
  std::string path = "/dev/shm/" + o.name;
  std::string refused;
};

TEST(SealedMemoryLayout, IsThis) {
  EXPECT_EQ(kSealedVersion, 1u);  // raise it with any change below
  EXPECT_EQ(offsetof(SealedHeaderData, magic), 0u);
  EXPECT_EQ(offsetof(SealedHeaderData, version), 8u);
  EXPECT_EQ(offsetof(SealedHeaderData, fingerprint_bytes), 12u);
  EXPECT_EQ(offsetof(SealedHeaderData, object_bytes), 16u);
  EXPECT_EQ(offsetof(SealedHeaderData, data_offset), 24u);
  EXPECT_EQ(offsetof(SealedHeaderData, data_bytes), 32u);
  EXPECT_EQ(offsetof(SealedHeaderData, checks_offset), 40u);
  EXPECT_EQ(offsetof(SealedHeaderData, check_count), 48u);
  EXPECT_EQ(offsetof(SealedHeaderData, digest), 56u);
  EXPECT_EQ(offsetof(SealedHeaderData, pad), 64u);
  EXPECT_EQ(offsetof(SealedHeaderData, fingerprint), 80u);
}

TEST_F(Named, IsFoundWhenItIsSealedAndNotBefore) {
  {
    SealedMemory memory = filled(o);
    EXPECT_EQ(::access(path.c_str(), F_OK), -1);
    EXPECT_FALSE(SealedMemory::find(o, refused));
    memory.seal();
    expect_filled(memory);
    EXPECT_FALSE(memory.immutable());
    try {
      SealedMemory::find(o, refused);
      ADD_FAILURE() << "it is in use";
    } catch (const std::system_error& e) {
      EXPECT_EQ(e.code().value(), EBUSY);
    }
  }
  struct stat s{};
  ASSERT_EQ(::stat(path.c_str(), &s), 0);
  EXPECT_EQ(s.st_mode & 0777, 0600u);
  const auto found = SealedMemory::find(o, refused);
  ASSERT_TRUE(found) << refused;
  expect_filled(*found);
  EXPECT_EQ(reinterpret_cast<uintptr_t>(found->data()) % (2 << 20), 0u);
}

TEST_F(Named, WithoutAnEndLeavesNothing) {
  filled(o);
  EXPECT_EQ(::access(path.c_str(), F_OK), -1);
}

TEST_F(Named, ANameThatIsTakenIsAnError) {
  SealedMemory first = filled(o), second = filled(o);
  first.seal();
  try {
    second.seal();
    ADD_FAILURE() << "two of one name";
  } catch (const std::system_error& e) {
    EXPECT_EQ(e.code().value(), EEXIST);
  }
  expect_filled(second);
}

TEST_F(Named, OfAnotherKindIsRefusedAndGone) {
  const auto refuse = [&](const SealedOptions& wanted) {
    filled(o).seal();
    EXPECT_FALSE(SealedMemory::find(wanted, refused));
    EXPECT_FALSE(refused.empty());
    EXPECT_EQ(::access(path.c_str(), F_OK), -1);
  };
  SealedOptions other = o;
  other.fingerprint = "files 0124";
  refuse(other);
  other = o;
  other.bytes += 1;
  refuse(other);
  other = o;
  other.checks += 1;
  refuse(other);
}

/// Whatever byte of the header is another: refused, or (the padding) covered by the digest.
TEST_F(Named, EveryByteOfTheHeaderCounts) {
  for (size_t at = 0; at < sizeof(SealedHeaderData); at += at < 128 ? 1 : 37) {
    filled(o).seal();
    const int fd = ::open(path.c_str(), O_RDWR | O_CLOEXEC);
    ASSERT_GE(fd, 0);
    uint8_t byte = 0;
    ASSERT_EQ(::pread(fd, &byte, 1, static_cast<off_t>(at)), 1);
    byte ^= 0x10;
    ASSERT_EQ(::pwrite(fd, &byte, 1, static_cast<off_t>(at)), 1);
    ::close(fd);
    EXPECT_FALSE(SealedMemory::find(o, refused)) << at;
    EXPECT_FALSE(refused.empty()) << at;
  }
}

TEST_F(Named, CutOrWithAHoleIsRefused) {
  for (const off_t cut : {off_t{0}, off_t{100}, off_t{3'000'000}}) {
    filled(o).seal();
    struct stat s{};
    ASSERT_EQ(::stat(path.c_str(), &s), 0);
    ASSERT_EQ(::truncate(path.c_str(), cut), 0);
    EXPECT_FALSE(SealedMemory::find(o, refused)) << cut;
    filled(o).seal();
    ASSERT_EQ(::truncate(path.c_str(), cut), 0);
    ASSERT_EQ(::truncate(path.c_str(), s.st_size), 0);
    EXPECT_FALSE(SealedMemory::find(o, refused)) << cut;
  }
}

TEST(Anonymous, IsImmutableAndFoundByItsDescriptor) {
  SealedOptions o = options(false);
  std::string refused;
  int fd = -1;
  {
    SealedMemory memory = filled(o);
    memory.seal();
    expect_filled(memory);
    EXPECT_TRUE(memory.immutable());
    fd = ::fcntl(memory.fd(), F_DUPFD_CLOEXEC, 0);
  }
  EXPECT_EQ(::pwrite(fd, "x", 1, 0), -1);
  EXPECT_EQ(::ftruncate(fd, 0), -1);
  EXPECT_EQ(::fallocate(fd, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, 0, 4096), -1);
  EXPECT_EQ(::mmap(nullptr, 4096, PROT_WRITE, MAP_SHARED, fd, 0), MAP_FAILED);
  o.fd = fd;
  const auto found = SealedMemory::find(o, refused);
  ASSERT_TRUE(found) << refused;
  expect_filled(*found);
}

TEST(Anonymous, ADescriptorThatIsNotSealedIsRefusedAndClosed) {
  SealedOptions o = options(false);
  std::string refused;
  SealedMemory memory = filled(o);
  o.fd = ::fcntl(memory.fd(), F_DUPFD_CLOEXEC, 0);
  EXPECT_FALSE(SealedMemory::find(o, refused));
  EXPECT_EQ(refused, "it is not sealed");
  EXPECT_EQ(::fcntl(o.fd, F_GETFD), -1);
}

/// A huge page that two threads want at once, and the first cannot have: the second asks for it himself, and has what
/// he gets. A third has the memory when there is some.
TEST(Anonymous, AHugePageThatOneCannotHaveIsAskedForByWhoWaited) {
  ::alarm(60);  // who waited for ever would not say so
  for (const bool both_refused : {true, false}) {
    SealedMemory memory = SealedMemory::make(options(false));
    const uint32_t before = tests::refusals;
    tests::refusal_gate_open = false;
    int first = -1, second = -1;
    std::atomic<bool> second_begins = false, has_filters = true;
    std::thread one([&] {
      if (!(has_filters = tests::refuse_memory_to_this_thread())) return;
      first = memory.populate(0, kHugePage);
    });
    while (has_filters && tests::refusals == before) std::this_thread::yield();  // it is in the kernel's hands
    std::thread other([&] {
      if (both_refused) tests::refuse_memory_to_this_thread();
      second_begins = true;
      second = memory.populate(0, kHugePage);
    });
    while (!second_begins) std::this_thread::yield();
    std::this_thread::sleep_for(std::chrono::milliseconds(20));  // until he waits
    tests::refusal_gate_open = true;
    one.join();
    other.join();
    if (!has_filters) GTEST_SKIP() << "no seccomp filters here";
    EXPECT_EQ(first, ENOSPC);
    EXPECT_EQ(second, both_refused ? ENOSPC : 0);
    EXPECT_EQ(tests::refusals - before, both_refused ? 2u : 1u);
    EXPECT_EQ(memory.populate(0, memory.bytes()), 0);
    std::memset(memory.data(), 1, memory.bytes());
  }
  ::alarm(0);
}

}  // namespace
}  // namespace ellm::shm
