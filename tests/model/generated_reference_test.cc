// The forward pass against a float64 pass in numpy over the same file: over models that the tests generate, and, so
// that the float64 pass itself is trusted, that pass against figures of others.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>

#include "tests/support/generated_model.h"
#include "tests/support/json_file.h"
#include "tests/support/model_runner.h"
#include "tests/support/test_data.h"

namespace ellm::tests {
namespace {

double largest_difference(const std::vector<float>& got, const std::vector<double>& want) {
  EXPECT_EQ(got.size(), want.size());
  double worst = 0;
  for (size_t i = 0; i < std::min(got.size(), want.size()); ++i) worst = std::max(worst, std::abs(got[i] - want[i]));
  return worst;
}

class Generated : public testing::TestWithParam<const char*> {};  // without $ELLM_TEST_DATA, too
INSTANTIATE_TEST_SUITE_P(Float64, Generated, testing::Values("phi3", "phi3-window", "qwen2moe", "qwen3moe"),
                         [](const auto& info) {
                           std::string name = info.param;
                           std::erase(name, '-');
                           return name;
                         });

TEST_P(Generated, LogitsEqualWithin1e4) {
  const GeneratedModel model(GetParam());
  ModelRunner runner(load_model(model.path()), {.kv_type = shm::KvType::f32});
  const double worst = largest_difference(runner.logits(model.tokens(), 512), model.logits());
  std::printf("%s: largest difference %.2g\n", GetParam(), worst);
  EXPECT_LT(worst, 1e-4);
}

// Weights of 8 bits and activations of 8 bits: a float64 pass that rounds activations likewise differs by a few codes
// that fall on the other side (0.004; one of 64 in a row weighs much). Near one that does not round, and the likeliest
// token the same where it is clear.
TEST(GeneratedQuantised, Qwen2Moe) {
  const GeneratedModel model("qwen2moe-q8");
  ModelRunner runner(load_model(model.path()), {.kv_type = shm::KvType::f32});
  const auto logits = runner.logits(model.tokens());
  const auto want = model.logits();
  const uint32_t vocabulary = runner.vocabulary();
  const TempDir dir;
  const std::string out = (dir.path() / "logits").string(), path = "'" + model.path() + "' ";
  float64_pass("rounded " + path + path + comma_separated(model.tokens()) + " '" + out + "'");
  const double rounded = relative_error(logits, read_values<double>(out)), exact = relative_error(logits, want);
  std::printf("relative error %.2g, %.2g of it without rounding\n", rounded, exact);
  EXPECT_LT(rounded, 0.01);
  EXPECT_LT(exact, 0.05);
  for (size_t row = 0; row < model.tokens().size(); ++row) {
    std::vector<double> exact(want.begin() + static_cast<long>(row * vocabulary),
                              want.begin() + static_cast<long>((row + 1) * vocabulary));
    const auto best = static_cast<uint32_t>(std::ranges::max_element(exact) - exact.begin());
    std::ranges::nth_element(exact, exact.begin() + 1, std::greater());
    if (exact[0] - exact[1] > 0.5) {
      EXPECT_EQ(best_of(row_of(logits, row, vocabulary)), best) << row;
    }
  }
}

// Which factors "longrope" takes hangs on the context that the model is loaded for, not on a request's length.
TEST(GeneratedPhi3, ForShortContextsTakesTheShortFactors) {
  const GeneratedModel model("phi3");
  ModelRunner runner(model::Model::load(model.path(), {.lock = false, .threads = 2, .context = 60}),
                     {.kv_type = shm::KvType::f32});
  auto tokens = model.tokens();
  tokens.resize(60);
  EXPECT_LT(largest_difference(runner.logits(tokens, 512), model.short_logits()), 1e-4);
}

#define NEED_DATA()              \
  const auto data = test_data(); \
  if (!data) GTEST_SKIP() << "ELLM_TEST_DATA is not set"

TEST(Float64Pass, AgreesWithThePeersLogits) {
  NEED_DATA();
  for (const std::string name :
       {"llama-gqa-f32", "qwen2-f32", "qwen2-tied-f32", "qwen3-f32", "gemma2-f32", "gemma3-f32"}) {
    const double worst = std::stod(float64_pass("compare '" + *data + "/synth/" + name + ".gguf' '" + *data +
                                                "/synth/reference_logits.json' " + name));
    EXPECT_LT(worst, name.starts_with("gemma") ? 0.005 : 1e-4)
        << name;  // the peer looks its GELU up in a table of halves
  }
}

TEST(Float64Pass, GemmaIsNearerToItThanThePeerIs) {
  NEED_DATA();
  const auto tokens = numbers<uint32_t>(read_json(*data + "/synth/reference_logits.json").at("tokens"));
  const std::string ids = comma_separated(tokens);
  const TempDir dir;
  for (const std::string name : {"gemma2-f32", "gemma3-f32"}) {
    const std::string path = *data + "/synth/" + name + ".gguf", out = (dir.path() / name).string();
    float64_pass("model '" + path + "' " + ids + " '" + out + "'");
    ModelRunner runner(load_model(path), {.kv_type = shm::KvType::f32});
    const double worst = largest_difference(runner.logits(tokens, 512), read_values<double>(out));
    std::printf("%s: largest difference %.2g\n", name.c_str(), worst);
    EXPECT_LT(worst, 2e-4) << name;
  }
}

}  // namespace
}  // namespace ellm::tests
