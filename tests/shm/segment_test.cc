// Where a segment's memory is: what was populated, in whole huge pages where this kernel makes them.
#include "shm/segment.h"

#include <gtest/gtest.h>
#include <sys/mman.h>

#include <vector>

#include "shm/huge_pages.h"

namespace ellm::shm {
namespace {

using Ranges = std::vector<std::pair<size_t, size_t>>;
constexpr size_t kMiB = size_t{1} << 20;

bool has_huge_pages() {
  bool refused = false;
  const Segment probe = Segment::make("", kHugePage);
  return populate_huge(probe.fd(), 0, probe.data(), kHugePage, refused) == 0 && !refused;
}

TEST(Segment, IsMappedAtAHugePagesBorder) {
  for (const size_t bytes : {size_t{1}, size_t{5000}, 3 * kMiB, 8 * kMiB})
    EXPECT_EQ(reinterpret_cast<uintptr_t>(Segment::make("", bytes).data()) % kHugePage, 0u) << bytes;
}

TEST(Segment, MemoryIsWhatWasPopulated) {
  const Segment segment = Segment::make("", 8 * kMiB);
  EXPECT_EQ(segment.memory(0, 8 * kMiB), Ranges{});
  ASSERT_EQ(segment.populate(5000, 4000), 0);
  ASSERT_EQ(segment.populate(3 * kMiB, 1), 0);
  EXPECT_EQ(segment.memory(0, 8 * kMiB), (Ranges{{4096, 12288}, {3 * kMiB, 3 * kMiB + 4096}}));
  EXPECT_EQ(segment.memory(8192, 3 * kMiB + 1), (Ranges{{8192, 12288}, {3 * kMiB, 3 * kMiB + 1}}));
  EXPECT_EQ(segment.memory(4 * kMiB, 8 * kMiB), Ranges{});
}

TEST(Segment, HugePagesAreWholeAndWithinIt) {
  if (!has_huge_pages()) GTEST_SKIP() << "this kernel makes no huge pages of shared memory";
  Segment segment = Segment::make("", 7 * kMiB);
  ASSERT_EQ(segment.populate_huge_pages(3 * kMiB, 2 * kMiB), 0);  // in the second and the third
  EXPECT_EQ(segment.memory(0, 7 * kMiB), (Ranges{{2 * kMiB, 6 * kMiB}}));
  segment.data()[5 * kMiB] = std::byte{7};
  ASSERT_EQ(segment.populate_huge_pages(6 * kMiB - 100, 200), 0);  // the fourth would reach over the end
  EXPECT_EQ(segment.memory(0, 7 * kMiB), (Ranges{{2 * kMiB, 6 * kMiB + 4096}}));
  EXPECT_EQ(segment.data()[5 * kMiB], std::byte{7});
}

}  // namespace
}  // namespace ellm::shm
