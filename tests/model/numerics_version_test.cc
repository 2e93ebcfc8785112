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
  uint64_t pages, logits;   // XXH3-64 of the payload of 3 pages, of 96 rows of logits
};

constexpr uint32_t kVersion = 2;
constexpr Known kKnown[] = {
    {"stories260K-Q4_K_M", shm::KvType::f32, 0xa9bd033b098cb746, 0xbb13be3e9440ea38},
    {"stories260K-Q4_K_M", shm::KvType::f16, 0x6ec2539845f95e89, 0xd95d9b929113ce64},
    {"stories260K-Q4_K_M", shm::KvType::int8, 0x9d51619827765156, 0x84badaf89020ad8b},
    {"stories260K-Q4_K_M", shm::KvType::int4, 0x37e346f84ff65be9, 0x83c98cc094d1643c},
    {"stories260K-Q8_0", shm::KvType::f16, 0x4ce7767be3de0f6, 0x59d58309a303c8d2},
    {"stories260K", shm::KvType::f16, 0xd1afe1a5cc270a72, 0x3ab541775d16dd50},
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
