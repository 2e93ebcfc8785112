// The layout of everything that stands in shared memory and outlives the process that wrote it.
// If this test fails, a segment of the last release would be misread: RAISE kLayoutVersion in shm/page_record.h, and
// only then write the new numbers here.
#include <gtest/gtest.h>

#include <cstddef>
#include <cstring>

#include "shm/page_record.h"

using namespace ellm::shm;

namespace {

TEST(SegmentLayout, Version) {
  EXPECT_EQ(kLayoutVersion, 2u);
  EXPECT_EQ(std::memcmp(&kSegmentMagic, "ellmKV01", 8), 0);
  EXPECT_EQ(kPageTokens, 32u);
  EXPECT_EQ(static_cast<int>(KvType::f16), 0);
  EXPECT_EQ(static_cast<int>(KvType::int8), 1);
  EXPECT_EQ(static_cast<int>(PageState::free), 0);
  EXPECT_EQ(static_cast<int>(PageState::filling), 1);
  EXPECT_EQ(static_cast<int>(PageState::sealed), 2);
}

TEST(SegmentLayout, Header) {
  EXPECT_EQ(sizeof(SegmentHeaderData), 3200u);
  EXPECT_EQ(sizeof(SegmentHeaderData) % 64, 0u);  // the records behind it are aligned to cache lines
  EXPECT_EQ(offsetof(SegmentHeaderData, magic), 0u);
  EXPECT_EQ(offsetof(SegmentHeaderData, layout_version), 8u);
  EXPECT_EQ(offsetof(SegmentHeaderData, record_bytes), 12u);
  EXPECT_EQ(offsetof(SegmentHeaderData, epoch), 16u);
  EXPECT_EQ(offsetof(SegmentHeaderData, segment_bytes), 24u);
  EXPECT_EQ(offsetof(SegmentHeaderData, records_offset), 32u);
  EXPECT_EQ(offsetof(SegmentHeaderData, payload_offset), 40u);
  EXPECT_EQ(offsetof(SegmentHeaderData, page_bytes), 48u);
  EXPECT_EQ(offsetof(SegmentHeaderData, pages), 56u);
  EXPECT_EQ(offsetof(SegmentHeaderData, layers), 60u);
  EXPECT_EQ(offsetof(SegmentHeaderData, kv_heads), 64u);
  EXPECT_EQ(offsetof(SegmentHeaderData, head_dim), 68u);
  EXPECT_EQ(offsetof(SegmentHeaderData, k_type), 72u);
  EXPECT_EQ(offsetof(SegmentHeaderData, v_type), 73u);
  EXPECT_EQ(offsetof(SegmentHeaderData, fingerprint_bytes), 76u);
  EXPECT_EQ(offsetof(SegmentHeaderData, fingerprint), 128u);
  EXPECT_EQ(kMaxFingerprintBytes, 3072u);
}

TEST(SegmentLayout, Record) {
  EXPECT_EQ(sizeof(PageRecordData), 192u);
  EXPECT_EQ(offsetof(PageRecordData, state), 0u);
  EXPECT_EQ(offsetof(PageRecordData, n_tokens), 4u);
  EXPECT_EQ(offsetof(PageRecordData, pinned), 6u);
  EXPECT_EQ(offsetof(PageRecordData, name_space), 8u);
  EXPECT_EQ(offsetof(PageRecordData, key), 16u);
  EXPECT_EQ(offsetof(PageRecordData, parent_key), 32u);
  EXPECT_EQ(offsetof(PageRecordData, checksum), 48u);
  EXPECT_EQ(offsetof(PageRecordData, last_use), 56u);
  EXPECT_EQ(offsetof(PageRecordData, tokens), 64u);
}

TEST(SegmentLayout, SharedAtomicsNeedNoLock) {
  EXPECT_TRUE(decltype(SegmentHeaderData::magic)::is_always_lock_free);
  EXPECT_TRUE(decltype(PageRecordData::state)::is_always_lock_free);
  EXPECT_TRUE(std::is_standard_layout_v<SegmentHeaderData>);
  EXPECT_TRUE(std::is_standard_layout_v<PageRecordData>);
}

}  // namespace
