// Weights that an earlier process left: the same bytes, found by the same file only, and damage is noticed.
#include <fcntl.h>
#include <gtest/gtest.h>
#include <unistd.h>
#include <xxhash.h>

#include <cstring>
#include <random>

#include "daemon/model/model.h"
#include "kernels/blocks.h"
#include "kernels/panel.h"
#include "tests/support/model_runner.h"
#include "tests/support/test_data.h"

namespace ellm::tests {
namespace {

using model::LoadOptions;
using model::Model;

class KeptWeights : public ::testing::Test {
 protected:
  void SetUp() override {
    if (!test_data()) GTEST_SKIP() << "ELLM_TEST_DATA is not set";
  }
  ~KeptWeights() override { shm::SealedMemory::remove(name_); }
  std::string file(const char* name) const { return *test_data() + "/models/" + name + ".gguf"; }
  LoadOptions kept(const std::string& fingerprint) const {
    LoadOptions options;
    options.lock = false;
    options.threads = 2;
    options.place = {.keep = true, .in_small_pages = true, .name = name_, .fingerprint = fingerprint};
    return options;
  }
  std::string name_ = shm::kWeightsPrefix + std::string("test-model.") + std::to_string(::getpid());
};

std::vector<float> logits_of(const std::shared_ptr<const Model>& model) {
  std::vector<uint32_t> tokens;
  for (uint32_t i = 0; i < 40; ++i) tokens.push_back(3 + i * i % 500);
  return ModelRunner(model, {}).logits(tokens, 16);
}

TEST_F(KeptWeights, GiveTheSameLogitsToTheBit) {
  for (const char* name : {"stories260K", "stories260K-Q4_K_M", "stories260K-Q6_K"}) {
    const std::string path = file(name);
    const auto wanted = logits_of(Model::load(path, {.lock = false}));
    for (const bool again : {false, true}) {
      const auto model = Model::load(path, kept(name));
      EXPECT_EQ(model->weight_state().taken_over, again);
      EXPECT_EQ(model->weight_state().vouched, !again);
      EXPECT_TRUE(model->weight_state().kept);
      EXPECT_TRUE(model->weights_intact(2));
      const auto got = logits_of(model);
      EXPECT_EQ(std::memcmp(got.data(), wanted.data(), wanted.size() * sizeof(float)), 0) << name << again;
    }
  }
}

TEST_F(KeptWeights, OfAnotherFingerprintOrLayoutAreDropped) {
  Model::load(file("stories260K-Q4_0"), kept("a"));
  const auto other = Model::load(file("stories260K-Q4_0"), kept("b"));
  EXPECT_FALSE(other->weight_state().taken_over);
  EXPECT_FALSE(other->weight_state().refused.empty());
  const auto type = Model::load(file("stories260K-Q8_0"), [&] {
    shm::SealedMemory::remove(name_);
    return kept("b");
  }());
  EXPECT_FALSE(type->weight_state().taken_over);
}

TEST_F(KeptWeights, ThatWereWrittenToAreNoticed) {
  Model::load(file("stories260K"), kept("a"));
  const int fd = ::open(("/dev/shm/" + name_).c_str(), O_RDWR | O_CLOEXEC);
  ASSERT_GE(fd, 0);
  const uint64_t bits = 0x3ff0000000000000;
  ASSERT_EQ(::pwrite(fd, &bits, sizeof bits, (2 << 20) + 70000), 8);
  ::close(fd);
  const auto model = Model::load(file("stories260K"), kept("a"));
  EXPECT_TRUE(model->weight_state().taken_over);
  EXPECT_FALSE(model->weights_intact(2));
}

/// What repack() writes for random rows of every type. Another digest: raise kernels::kPanelVersion, or daemons of two
/// versions take each other's weights for theirs.
TEST(PanelVersion, HoldsWhatRepackingWrites) {
  using kernels::WeightType;
  std::mt19937 random(1);
  XXH64_hash_t all = 0;
  for (const WeightType type : kernels::kWeightTypes) {
    constexpr uint32_t kRows = 37, kCols = 512;
    const kernels::BlockShape shape = kernels::block_shape(type);
    std::vector<std::byte> rows(size_t{kRows} * kCols / shape.weights * shape.bytes);
    for (auto& b : rows) b = static_cast<std::byte>(random());
    kernels::PanelMatrix m{type, kRows, kCols, nullptr, kernels::panel_bytes(type, kCols)};
    std::vector<std::byte> panels(m.panels() * m.panel_bytes);
    kernels::repack(m, panels.data(), rows.data(), 0, m.panels());
    all = XXH3_64bits_withSeed(panels.data(), panels.size(), all);
  }
  EXPECT_EQ(kernels::kPanelVersion, 1u);
  EXPECT_EQ(all, 0x4bfdb54499c843acu) << std::hex << "0x" << all;
}

}  // namespace
}  // namespace ellm::tests
