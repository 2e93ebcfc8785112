// What `ellm inspect` says of a file before it is loaded: every reason to refuse it by name, and the memory that its
// weights will take.
#include "daemon/model/survey.h"

#include <gtest/gtest.h>

#include <filesystem>

#include "daemon/model/model.h"
#include "tests/support/temp_dir.h"
#include "tests/support/test_data.h"
#include "tests/support/tiny_model.h"

namespace ellm::model {
namespace {

using tests::complete_model;
using tests::GgufBuilder;

std::vector<std::string> problems_of(const GgufBuilder& builder) {
  const tests::TempDir dir;
  return find_unsupported(*format::Gguf::open(dir.write("m.gguf", builder.bytes())));
}

void expect_one(const GgufBuilder& builder, std::string_view part) {
  const auto problems = problems_of(builder);
  ASSERT_EQ(problems.size(), 1u) << part;
  EXPECT_NE(problems[0].find(part), std::string::npos) << problems[0];
  EXPECT_EQ(problems[0].find("m.gguf"), std::string::npos) << "who asks knows the file: " << problems[0];
}

TEST(Survey, NamesWhatIsNotSupported) {
  EXPECT_TRUE(problems_of(complete_model()).empty());
  const std::string bytes(32 * 40, '\1');
  expect_one(complete_model().string("general.architecture", "mamba"), "architecture 'mamba': not supported (");
  expect_one(complete_model().tensor("token_embd.weight", {32, 40}, 24, bytes),
             "weight type I8: not supported (1 tensor)");
  expect_one(complete_model().string("tokenizer.ggml.pre", "nosuch"), "unknown pre-tokenizer 'nosuch'");
  expect_one(complete_model().remove("tokenizer.ggml.model"), "tokenizer: key 'tokenizer.ggml.model' is missing");
  expect_one(complete_model().string("tokenizer.chat_template", "a\n{% if %}"), "chat template, line 2");
  expect_one(complete_model().remove_tensor("blk.1.ffn_up.weight"), "tensor 'blk.1.ffn_up.weight' is missing");
  expect_one(complete_model().u32("llama.block_count", 0), "llama.block_count");
}

TEST(Survey, NamesAllOfThem) {
  GgufBuilder b = complete_model().string("general.architecture", "mamba").string("tokenizer.ggml.pre", "nosuch");
  b.string("tokenizer.chat_template", "{{").tensor("token_embd.weight", {32, 40}, 24, std::string(32 * 40, '\1'));
  EXPECT_EQ(problems_of(b).size(), 4u);
}

TEST(Survey, MemoryOfWholePanels) {
  const tests::TempDir dir;
  // 40 rows are 3 panels of 16; with F32 a panel of 32 columns takes 2 KiB.
  GgufBuilder b;
  b.string("general.architecture", "llama").tensor_f32("token_embd.weight", {32, 40}).tensor_f32("a.weight", {32});
  EXPECT_EQ(repacked_bytes(*format::Gguf::open(dir.write("m.gguf", b.bytes()))), 3u * 16 * 32 * 4);
}

TEST(SurveyReference, MemoryIsWhatLoadingTakes) {
  const auto data = tests::test_data();
  if (!data) GTEST_SKIP() << "ELLM_TEST_DATA is not set";
  int loaded = 0;
  for (const char* folder : {"/models", "/synth"})
    for (const auto& entry : std::filesystem::directory_iterator(*data + folder)) {
      const std::string path = entry.path();
      if (!path.ends_with(".gguf") || path.ends_with("-be.gguf") || path.find("-of-") != path.npos) continue;
      const auto file = format::Gguf::open(path);
      std::shared_ptr<const Model> model;
      try {
        model = Model::load(path, {.lock = false});
      } catch (const std::runtime_error&) {
        EXPECT_FALSE(find_unsupported(*file).empty()) << path;
        continue;
      }
      EXPECT_EQ(repacked_bytes(*file), model->weight_bytes()) << path;
      EXPECT_TRUE(find_unsupported(*file).empty()) << path << ": " << find_unsupported(*file).front();
      ++loaded;
    }
  EXPECT_GE(loaded, 15);
}

}  // namespace
}  // namespace ellm::model
