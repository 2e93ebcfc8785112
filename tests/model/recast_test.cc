// Trained weights of llama models as phi3 and qwen2moe models (tests/model/recast.py), which llama.cpp says compute the
// same.
#include <gtest/gtest.h>

#include "tests/support/generated_model.h"
#include "tests/support/model_runner.h"
#include "tests/support/test_data.h"
#include "tests/support/texts.h"

namespace ellm::tests {
namespace {

std::string recast(const std::string& architecture, const std::string& source, const TempDir& dir) {
  const std::string path = (dir.path() / (architecture + ".gguf")).string();
  output_of("/usr/bin/python3 '" ELLM_SOURCE_DIR "/tests/model/recast.py' " + architecture + " '" + source + "' '" +
            path + "'");
  return path;
}

/// Weights as floats: no activation is rounded, which in thirty layers would part any two orders of adding.
std::shared_ptr<const model::Model> load_floats(const std::string& path) {
  return model::Model::load(path, {.lock = false, .threads = 2, .float_weights = true});
}

/// How far the logits of both recasts are from the source's.
void compare(const std::string& source, size_t count, double bound) {
  ModelRunner original(load_floats(source), {.kv_type = shm::KvType::f32});
  auto tokens = original.model().tokenizer()->encode(
      "Once upon a time there was a little girl. Her name was Lily, and she had a dog.\n\n"
      "One day they went to the park. She said: \"Look, Tom, 3 + 4 = 7!\"");
  tokens.resize(std::min(tokens.size(), count));
  const auto logits = original.logits(tokens);
  const std::vector<double> want(logits.begin(), logits.end());
  for (const std::string architecture : {"phi3", "qwen2moe"}) {
    const TempDir dir;
    ModelRunner runner(load_floats(recast(architecture, source, dir)), {.kv_type = shm::KvType::f32});
    EXPECT_EQ(runner.model().config().architecture, architecture);
    const double error = relative_error(runner.logits(tokens), want);
    std::printf("%s: relative error %.2g\n", architecture.c_str(), error);
    EXPECT_LT(error, bound) << architecture;
  }
}

TEST(Recast, StoriesComputeTheSame) {
  const auto data = test_data();
  if (!data) GTEST_SKIP() << "ELLM_TEST_DATA is not set";
  compare(*data + "/models/stories260K.gguf", 100, 1e-5);
}

TEST(RealRecast, Smollm2ComputesTheSame) {
  const std::string path = find_real_model("smollm2");
  if (path.empty()) GTEST_SKIP() << "smollm2 is not there: ellm pull smollm2";
  compare(path, 32, 1e-5);
}

}  // namespace
}  // namespace ellm::tests
