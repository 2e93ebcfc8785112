// A file of pages: what is written is read, and damage of any byte is found before a page is believed.
#include "shm/disk_file.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <map>
#include <random>

#include "tests/support/file_limit.h"
#include "tests/support/temp_dir.h"

using namespace ellm::shm;

namespace {

class DiskFileTest : public ::testing::Test {
 protected:
  DiskFileTest() { directory_ = open(dir_.path().c_str(), O_RDONLY | O_DIRECTORY); }
  ~DiskFileTest() override { close(directory_); }

  DiskRun run(uint32_t pages, uint32_t last_tokens) {
    DiskRun run{7, page_key({}, 7, std::vector<uint32_t>(kPageTokens, 9)), 1, {}};
    PageKey parent = run.parent;
    for (uint32_t i = 0; i < pages; ++i) {
      DiskPage& page = run.pages.emplace_back();
      page.n_tokens = i + 1 == pages ? last_tokens : kPageTokens;
      for (uint32_t t = 0; t < page.n_tokens; ++t) page.tokens[t] = 100 * i + t;
      parent = page.key = page_key(parent, run.name_space, std::span(page.tokens).first(page.n_tokens));
      page.checksum = disk_checksum(payload(i));
    }
    return run;
  }
  std::vector<std::byte> payload(uint32_t page) const {
    std::vector<std::byte> bytes(format_.geometry.page_bytes());
    std::mt19937 random(page);
    for (std::byte& byte : bytes) byte = std::byte(random());
    return bytes;
  }
  int write(const std::string& name, const DiskRun& run) {
    DiskFileWriter writer(directory_, name);
    if (const int error = writer.open()) return error;
    if (const int error = writer.write(disk_header(format_, run))) return error;
    for (uint32_t i = 0; i < run.pages.size(); ++i) {
      if (const int error = writer.write(payload(i))) return error;
    }
    return writer.publish();
  }
  DiskFault fault(const std::string& name) {
    const int fd = openat(directory_, name.c_str(), O_RDONLY);
    DiskRun there;
    uint64_t offset = 0;
    const DiskFault fault = fd < 0 ? DiskFault::unreadable : read_disk_header(fd, format_, there, offset);
    close(fd);
    EXPECT_EQ(fault == DiskFault::none, !there.pages.empty());
    return fault;
  }
  size_t files() const {
    return static_cast<size_t>(std::distance(std::filesystem::directory_iterator(dir_.path()), {}));
  }

  ellm::tests::TempDir dir_;
  int directory_;
  DiskFormat format_{{2, 2, 20, KvType::int8, KvType::f16}, "weights 0123"};
};

TEST_F(DiskFileTest, LayoutIsThatOfVersion1) {
  EXPECT_EQ(kDiskLayoutVersion, 1u);
  EXPECT_EQ(sizeof(DiskFileHeaderData), 88u);
  EXPECT_EQ(offsetof(DiskFileHeaderData, checksum), 16u);
  EXPECT_EQ(offsetof(DiskFileHeaderData, payload_offset), 24u);
  EXPECT_EQ(offsetof(DiskFileHeaderData, page_bytes), 32u);
  EXPECT_EQ(offsetof(DiskFileHeaderData, name_space), 40u);
  EXPECT_EQ(offsetof(DiskFileHeaderData, parent_key), 48u);
  EXPECT_EQ(offsetof(DiskFileHeaderData, depth), 64u);
  EXPECT_EQ(offsetof(DiskFileHeaderData, layers), 68u);
  EXPECT_EQ(offsetof(DiskFileHeaderData, k_type), 80u);
  EXPECT_EQ(offsetof(DiskFileHeaderData, fingerprint_bytes), 84u);
  EXPECT_EQ(sizeof(DiskPageRecordData), 160u);
  EXPECT_EQ(offsetof(DiskPageRecordData, checksum), 16u);
  EXPECT_EQ(offsetof(DiskPageRecordData, n_tokens), 24u);
  EXPECT_EQ(offsetof(DiskPageRecordData, tokens), 32u);
}

TEST_F(DiskFileTest, WhatIsWrittenIsRead) {
  const DiskRun wrote = run(5, 11);
  const std::string name = disk_file_name(format_, 7, wrote.pages[0].key);
  EXPECT_EQ(namespace_in(name), 7u);
  EXPECT_TRUE(name.starts_with(disk_file_prefix(format_)));
  ASSERT_EQ(write(name, wrote), 0);
  EXPECT_EQ(files(), 1u);  // nothing unfinished
  struct stat status{};
  ASSERT_EQ(fstatat(directory_, name.c_str(), &status, 0), 0);
  EXPECT_EQ(status.st_mode & 0777, 0600u);
  const int fd = openat(directory_, name.c_str(), O_RDONLY);
  DiskRun read;
  uint64_t offset = 0;
  ASSERT_EQ(read_disk_header(fd, format_, read, offset), DiskFault::none);
  EXPECT_EQ(offset % kDiskBlock, 0u);
  EXPECT_EQ(read.name_space, 7u);
  EXPECT_EQ(read.parent, wrote.parent);
  EXPECT_EQ(read.depth, 1u);
  ASSERT_EQ(read.pages.size(), 5u);
  std::vector<std::byte> bytes(format_.geometry.page_bytes());
  for (uint32_t i = 0; i < 5; ++i) {
    EXPECT_EQ(read.pages[i].key, wrote.pages[i].key);
    EXPECT_EQ(read.pages[i].tokens, wrote.pages[i].tokens);
    EXPECT_EQ(read.pages[i].n_tokens, wrote.pages[i].n_tokens);
    EXPECT_TRUE(read_disk_payload(fd, offset + i * bytes.size(), bytes, read.pages[i].checksum));
    EXPECT_EQ(bytes, payload(i));
  }
  EXPECT_FALSE(read_disk_payload(fd, offset + 5 * bytes.size(), bytes, 0));
  close(fd);
}

TEST_F(DiskFileTest, NamesOfOthersAreNone) {
  for (const char* name : {"", ".", "lock", "a.kv", "0123456789abcdef-7-0123456789abcdef0123456789abcdeg.kv",
                           "0123456789abcdef--0123456789abcdef0123456789abcdef.kv",
                           "0123456789abcdef-11112222333344445-0123456789abcdef0123456789abcdef.kv",
                           ".new-0123456789abcdef-7-0123456789abcdef0123456789abcdef.kv"})
    EXPECT_EQ(namespace_in(name), std::nullopt) << name;
  EXPECT_EQ(namespace_in("0123456789abcdef-1f0-0123456789abcdef0123456789abcdef.kv"), 0x1f0u);
}

TEST_F(DiskFileTest, AnotherModelsFileIsForeign) {
  ASSERT_EQ(write("f", run(3, 32)), 0);
  EXPECT_EQ(fault("f"), DiskFault::none);
  const DiskFormat mine = format_;
  format_.fingerprint = "weights 0124";
  EXPECT_EQ(fault("f"), DiskFault::foreign);
  format_ = mine;
  format_.geometry.layers = 4, format_.geometry.kv_heads = 1;  // of the same size
  EXPECT_EQ(fault("f"), DiskFault::foreign);
}

/// Every byte before the payload flipped, one at a time, and the file cut at every length.
TEST_F(DiskFileTest, DamageOfEveryByteIsFound) {
  const DiskRun wrote = run(3, 20);
  const std::string path = (dir_.path() / "f").string();
  ASSERT_EQ(write("f", wrote), 0);
  const auto payload_offset = disk_header(format_, wrote).size();
  const int fd = open(path.c_str(), O_RDWR);
  std::map<DiskFault, int> faults;
  for (size_t at = 0; at < payload_offset; ++at) {
    for (const int bit : {0, 6}) {
      std::byte byte;
      ASSERT_EQ(pread(fd, &byte, 1, static_cast<off_t>(at)), 1);
      const std::byte flipped = byte ^ (std::byte{1} << bit);
      ASSERT_EQ(pwrite(fd, &flipped, 1, static_cast<off_t>(at)), 1);
      const DiskFault found = fault("f");
      ++faults[found];
      ASSERT_NE(found, DiskFault::none) << at;
      ASSERT_EQ(pwrite(fd, &byte, 1, static_cast<off_t>(at)), 1);
    }
  }
  EXPECT_EQ(faults[DiskFault::other_layout], 8);  // the version's four bytes
  EXPECT_EQ(faults[DiskFault::damaged], static_cast<int>(2 * payload_offset) - 8);
  EXPECT_EQ(fault("f"), DiskFault::none);
  std::vector<std::byte> bytes(format_.geometry.page_bytes());
  std::mt19937 random(1);
  for (int i = 0; i < 200; ++i) {  // the payload
    const size_t page = random() % 3, at = payload_offset + page * bytes.size() + random() % bytes.size();
    std::byte byte;
    ASSERT_EQ(pread(fd, &byte, 1, static_cast<off_t>(at)), 1);
    const std::byte flipped = byte ^ (std::byte{1} << (i % 8));
    ASSERT_EQ(pwrite(fd, &flipped, 1, static_cast<off_t>(at)), 1);
    EXPECT_FALSE(read_disk_payload(fd, payload_offset + page * bytes.size(), bytes, wrote.pages[page].checksum));
    ASSERT_EQ(pwrite(fd, &byte, 1, static_cast<off_t>(at)), 1);
  }
  struct stat status{};
  ASSERT_EQ(fstat(fd, &status), 0);
  for (off_t length = status.st_size - 1; length > 0; length -= 1 + length / 50) {
    ASSERT_EQ(ftruncate(fd, length), 0);
    ASSERT_EQ(fault("f"), DiskFault::damaged) << length;
  }
  ASSERT_EQ(ftruncate(fd, status.st_size + 1), 0);
  EXPECT_EQ(fault("f"), DiskFault::damaged);
  close(fd);
}

/// Records whose checksum somebody has corrected must still be the hashes of themselves.
TEST_F(DiskFileTest, AChainThatIsNoneIsDamaged) {
  for (const int what : {0, 1, 2}) {
    DiskRun wrong = run(3, 32);
    if (what == 0) wrong.pages[1].tokens[3] ^= 1;
    if (what == 1) wrong.name_space = 8;
    if (what == 2) wrong.pages[1].n_tokens = 5;
    ASSERT_EQ(write("f", wrong), 0);
    EXPECT_EQ(fault("f"), DiskFault::damaged) << what;
  }
}

TEST_F(DiskFileTest, AFileThatCouldNotBeWrittenLeavesNothing) {
  {
    const ellm::tests::FileLimit limit(6000);
    EXPECT_EQ(write("f", run(3, 32)), EFBIG);
  }
  EXPECT_EQ(files(), 0u);
}

}  // namespace
