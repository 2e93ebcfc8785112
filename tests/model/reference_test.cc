// The forward pass against what others computed: float64 passes over the same files, and llama.cpp's outputs.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <fstream>
#include <sstream>

#include "tests/support/json_file.h"
#include "tests/support/logits.h"
#include "tests/support/model_runner.h"
#include "tests/support/test_data.h"

namespace ellm::tests {
namespace {

using boost::json::value;

std::vector<float> read_npy_f32(const std::string& path) {
  std::ifstream in(path, std::ios::binary);
  std::stringstream s;
  s << in.rdbuf();
  const std::string bytes = s.str();
  const size_t header = 10 + static_cast<unsigned char>(bytes.at(8)) + 256u * static_cast<unsigned char>(bytes.at(9));
  std::vector<float> out((bytes.size() - header) / sizeof(float));
  std::memcpy(out.data(), bytes.data() + header, out.size() * sizeof(float));
  return out;
}

#define NEED_DATA()                                                         \
  const auto data = test_data();                                            \
  if (!data) GTEST_SKIP() << "ELLM_TEST_DATA is not set"

// ---- small models -------------------------------------------------------------------------------------------------

TEST(Reference, Stories260kLogitsEqualAFloat64Pass) {
  NEED_DATA();
  ModelRunner runner(load_model(*data + "/models/stories260K.gguf"), {});
  const value gold = read_json(*data + "/reference/stories260K_gold.json");
  const auto tokens = numbers<uint32_t>(gold.at("tokens"));
  const auto expected = read_npy_f32(*data + "/reference/stories260K_gold_logits_f32.npy");
  const auto logits = runner.logits(tokens, 512);
  ASSERT_EQ(logits.size(), expected.size());
  double worst = 0;
  for (size_t i = 0; i < logits.size(); ++i) worst = std::max<double>(worst, std::abs(logits[i] - expected[i]));
  EXPECT_LT(worst, 1e-3 * 20) << "f16 KV";
  RecordProperty("worst", std::to_string(worst));
  std::printf("stories260K: largest difference from float64 %.2g\n", worst);
}

class Synth : public testing::TestWithParam<const char*> {};

TEST_P(Synth, LogitsOfFloatModels) {
  NEED_DATA();
  const std::string name = GetParam();
  ModelRunner runner(load_model(*data + "/synth/" + name + ".gguf"), {});
  const value all = read_json(*data + "/synth/reference_logits.json");
  const value& expected = all.at("models").at(name);
  const auto logits = runner.logits(numbers<uint32_t>(all.at("tokens")), 512);
  double worst = 0;
  for (const auto& [position, row] : expected.at("logits").as_object()) {
    const auto want = numbers<double>(row);
    const auto got = row_of(logits, std::stoul(position), runner.vocabulary());
    ASSERT_EQ(got.size(), want.size());
    for (size_t i = 0; i < want.size(); ++i) worst = std::max(worst, std::abs(got[i] - want[i]));
  }
  std::printf("%s: largest difference %.2g\n", name.c_str(), worst);
  EXPECT_LT(worst, 0.02);
}
INSTANTIATE_TEST_SUITE_P(Reference, Synth, testing::Values("llama-gqa-f32", "qwen2-f32", "qwen2-tied-f32"));

}  // namespace
}  // namespace ellm::tests
