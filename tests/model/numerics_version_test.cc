// What a prefix's bytes and an answer's logits are, by numerics version. Kept pages of another version are dropped at a
// restart, so whatever changes a bit here raises model::kNumericsVersion; then the digests below are replaced.
#include <gtest/gtest.h>
#include <xxhash.h>

#include "daemon/model/forward.h"
#include "tests/support/model_runner.h"
#include "tests/support/test_data.h"

namespace ellm::tests {
namespace {

struct Known {
  const char* file;
  shm::KvType kv;
  uint64_t pages, logits;  // XXH3-64 of the payload of 3 pages, of 96 rows of logits
};

constexpr uint32_t kVersion = 4;
constexpr Known kKnown[] = {
    {"stories260K-Q4_K_M", shm::KvType::f32, 0xf163508c0972af5f, 0xf6a58a082e9985a2},
    {"stories260K-Q4_K_M", shm::KvType::f16, 0x1060a82a877a5d5, 0xe167e55bdecfef36},
    {"stories260K-Q4_K_M", shm::KvType::int8, 0xcee8b4a0a9cd6835, 0x81caf793efb7f4b6},
    {"stories260K-Q4_K_M", shm::KvType::int4, 0xde775644d5c4780b, 0x94b02aed2856466a},
    {"stories260K-Q8_0", shm::KvType::f16, 0x760d1251a632bb79, 0x80357337dae98dc2},
    {"stories260K", shm::KvType::f16, 0x27579b420c5f05bb, 0xf437017e28d5cafb},
};

TEST(NumericsVersionReference, IsRaisedWithEveryChangeOfABit) {
  if (!test_data()) GTEST_SKIP() << "ELLM_TEST_DATA is not set";
  EXPECT_EQ(model::kNumericsVersion, kVersion);
  constexpr uint32_t kTokens = 3 * shm::kPageTokens;
  std::vector<uint32_t> tokens;
  for (uint32_t i = 0; i < kTokens; ++i) tokens.push_back(3 + i * i % 500);
  for (const Known& known : kKnown) {
    ModelRunner runner(load_model(*test_data() + "/models/" + known.file + ".gguf", true), {.kv_type = known.kv});
    ModelRunner::Sequence sequence;
    const ModelRunner::Feed feed{&sequence, tokens, kTokens};
    const std::span<const float> logits = runner.step(feed);
    uint64_t pages = 0;
    for (const shm::PageId page : sequence.pages)
      pages = XXH3_64bits_withSeed(runner.kv().payload(page), runner.kv().geometry().page_bytes(), pages);
    const uint64_t answer = XXH3_64bits(logits.data(), logits.size() * sizeof(float));
    EXPECT_TRUE(pages == known.pages && answer == known.logits)
        << known.file << ", KV " << shm::name_of(known.kv) << ": 0x" << std::hex << pages << ", 0x" << answer
        << ": raise model::kNumericsVersion where this is meant to be";
  }
}

}  // namespace
}  // namespace ellm::tests
