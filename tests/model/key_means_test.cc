// The mean of K where a model has no bias.
#include <gtest/gtest.h>

#include <filesystem>
#include <string>

#include "daemon/model/model.h"
#include "tests/support/test_data.h"

namespace ellm::tests {
namespace {

using model::LoadOptions;
using model::Model;

TEST(KeyMeans, OfDequantisedWeightsAreThoseThatServe) {
  if (!test_data()) GTEST_SKIP() << "ELLM_TEST_DATA is not set";
  const std::string path = *test_data() + "/models/stories260K-Q4_0.gguf";
  const std::string kept = ::testing::TempDir() + "key_means_test";
  std::filesystem::remove_all(kept);
  const LoadOptions as_served{.lock = false, .threads = 2, .key_means = true};
  LoadOptions dequantised = as_served;
  dequantised.float_weights = true;
  const auto means = Model::load(path, as_served)->key_means();
  ASSERT_FALSE(means.empty());
  EXPECT_EQ(Model::load(path, dequantised)->key_means(), means);
  dequantised.state_directory = kept;  // and what is left there for others
  EXPECT_EQ(Model::load(path, dequantised)->key_means(), means);
  LoadOptions later = as_served;
  later.state_directory = kept;
  EXPECT_EQ(Model::load(path, later)->key_means(), means);
  EXPECT_FALSE(std::filesystem::is_empty(kept));
}

}  // namespace
}  // namespace ellm::tests
