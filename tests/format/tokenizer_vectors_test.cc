// Token ids against those of the tokenizers' makers: llama.cpp's vectors for eight vocabularies (made with Hugging
// Face's tokenizers and SentencePiece), and 1,718 strings by Hugging Face tokenizers, SentencePiece and llama.cpp.
#include <gtest/gtest.h>

#include <boost/json.hpp>
#include <sstream>

#include "tests/format/tokenizer_files.h"
#include "tests/support/real_models.h"

namespace ellm::format {
namespace {

using tests::kPlain;

std::vector<std::string> split(const std::string& text, const std::string& separator) {
  std::vector<std::string> parts;
  size_t begin = 0;
  for (size_t at; (at = text.find(separator, begin)) != text.npos; begin = at + separator.size())
    parts.push_back(text.substr(begin, at - begin));
  if (begin < text.size()) parts.push_back(text.substr(begin));
  return parts;
}

class Vectors : public testing::TestWithParam<std::string> {};

TEST_P(Vectors, Agree) {
  const auto data = tests::test_data();
  if (!data) GTEST_SKIP() << "ELLM_TEST_DATA is not set";
  const auto tokenizer = Tokenizer::open(*tests::vocabulary_file(*data, GetParam()));
  const std::string stem = *data + "/tokenizers/" + GetParam();
  const auto inputs = split(tests::read_file(stem + ".inp"), "\n__ggml_vocab_test__\n");
  const auto outputs = split(tests::read_file(stem + ".out"), "\n");
  ASSERT_GE(inputs.size(), 46u);
  ASSERT_EQ(inputs.size(), outputs.size());
  for (size_t i = 0; i < inputs.size(); ++i) {
    std::istringstream line(outputs[i]);
    const std::vector<TokenId> expected{std::istream_iterator<TokenId>(line), {}};
    EXPECT_EQ(tokenizer->encode(inputs[i], kPlain), expected) << "text: " << inputs[i];
  }
}

INSTANTIATE_TEST_SUITE_P(Tokenizer, Vectors,
                         testing::Values("gpt-2", "qwen2", "llama-bpe", "llama-spm", "phi-3", "falcon", "starcoder",
                                         "deepseek-coder"),
                         [](const auto& info) {
                           std::string name = info.param;
                           std::erase(name, '-');
                           return name;
                         });

struct Column {
  const char* name;
  const char* file;  // below the reference data, or the name of a real model
  bool trims;       // its SentencePiece model drops leading, trailing and repeated spaces, which a GGUF does not record
  size_t at_least;  // rows compared
};

class Strings : public testing::TestWithParam<Column> {};

bool has_odd_spaces(std::string text) {
  for (size_t at; (at = text.find("\xE2\x96\x81")) != text.npos;) text.replace(at, 3, " ");
  return text.empty() || text.front() == ' ' || text.back() == ' ' || text.find("  ") != text.npos;
}

TEST_P(Strings, Agree) {
  const auto data = tests::test_data();
  if (!data) GTEST_SKIP() << "ELLM_TEST_DATA is not set";
  const Column column = GetParam();
  const std::string model = std::string_view(column.file).find('/') == std::string_view::npos ? column.file : "";
  const std::string path = model.empty() ? *data + "/" + column.file : tests::find_real_model(model);
  if (path.empty()) GTEST_SKIP() << model << " is not there: $ELLM_TEST_DATA/tools/get-models " << model;
  const auto tokenizer =
      Tokenizer::open(path.ends_with(".gz") ? *tests::gguf_of(tests::gunzip(path)) : *Gguf::open(path));
  size_t compared = 0;
  for (const std::string& line : split(tests::gunzip(*data + "/tokenizers/strings.jsonl.gz"), "\n")) {
    const boost::json::object row = boost::json::parse(line).as_object();
    const auto* ids = row.if_contains(column.name);
    if (!ids || !ids->is_array()) continue;
    const std::string text(row.at("text").as_string());
    if (column.trims && has_odd_spaces(text)) continue;
    ++compared;
    EXPECT_EQ(tokenizer->encode(text, kPlain), boost::json::value_to<std::vector<TokenId>>(*ids)) << line;
    if (testing::Test::HasFailure()) break;  // one at a time is enough
  }
  EXPECT_GE(compared, column.at_least);
}

INSTANTIATE_TEST_SUITE_P(Tokenizer, Strings,
                         testing::Values(Column{"qwen", "tokenizers/qwen2.gguf.gz", false, 1718},
                                         Column{"llama3", "tokenizers/llama-bpe.gguf.gz", false, 1718},
                                         Column{"llama2", "tokenizers/llama-spm.gguf.gz", false, 1718},
                                         Column{"gemma", "gemma3-270m", false, 1718},
                                         Column{"tok512", "models/stories260K.gguf", true, 1200},
                                         Column{"gpt2_llamacpp", "tokenizers/gpt-2.gguf.gz", false, 1718}),
                         [](const auto& info) { return std::string(info.param.name); });

}  // namespace
}  // namespace ellm::format
