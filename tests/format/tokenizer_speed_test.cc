// The bound on time: 4.4 MB of English, and 1 MB of one thing that a careless tokenizer takes quadratic time for, are
// tokenized in under two seconds, with PCRE2's JIT and without.
#include <gtest/gtest.h>

#include <chrono>
#include <set>

#include "daemon/format/bpe.h"
#include "daemon/format/spm.h"
#include "tests/format/tokenizer_files.h"

namespace ellm::format {
namespace {

using Engine = PreTokenizer::Engine;

#if !defined(NDEBUG) || defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
constexpr double kBound = 60;  // a build to find faults, not to measure
#else
constexpr double kBound = 2;
#endif

template <typename F>
double seconds(F&& f) {
  const auto begin = std::chrono::steady_clock::now();
  f();
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
}

std::string repeated(std::string_view unit, size_t bytes) {
  std::string text;
  text.reserve(bytes + unit.size());
  while (text.size() < bytes) text += unit;
  return text;
}

// Runs of each class of character, and units that begin a match which comes to nothing.
const char* const kUnits[] = {"a", "A", "aA", " ",      "\n",      " \n",  " a",     "1",
                              "!", "'", "漢", "\u0301", "e\u0301", "\xFF", "\u3000", "<|"};

TEST(TokenizerSpeed, EveryPreTokenizerIsLinear) {
  std::vector<uint32_t> ends;
  std::set<std::string> seen;
  for (const PreTokenizerSpec& spec : pretokenizers()) {
    std::string regexes;
    for (const SplitStage& stage : spec.stages) regexes.append(stage.regex).push_back('\n');
    if (!seen.insert(regexes).second) continue;
    for (const Engine engine : {Engine::fastest, Engine::interpreter}) {
      const PreTokenizer pretokenizer(spec, engine);
      for (const char* unit : kUnits) {
        const std::string text = repeated(unit, 400'000) + "x";  // a run's end decides late
        EXPECT_LT(seconds([&] { pretokenizer.split(text, ends); }), kBound)
            << spec.names[0] << " of " << testing::PrintToString(unit);
        EXPECT_EQ(ends.back(), text.size());
      }
    }
  }
}

TEST(TokenizerSpeedReference, KingJamesBible) {
  const auto data = tests::test_data();
  if (!data) GTEST_SKIP() << "ELLM_TEST_DATA is not set";
  const std::string text = tests::gunzip(*data + "/text/kjv.txt.gz");
  ASSERT_GT(text.size(), 4'400'000u);
  const auto measure = [&](const std::string& what, const auto& encode) {
    std::vector<TokenId> ids;
    const double time = seconds([&] { encode(ids); });
    EXPECT_LT(time, kBound) << what;
    EXPECT_GT(ids.size(), 1'100'000u);
    RecordProperty(what, std::to_string(static_cast<double>(text.size()) / 1e6 / time) + " MB/s");
  };
  for (const char* name : {"gpt-2", "qwen2", "llama-bpe"}) {
    const auto file = tests::vocabulary_file(*data, name);
    const Vocabulary vocabulary(*file, Vocabulary::Form::byte_level);
    for (const char* pre : {name, "smollm"}) {
      for (const Engine engine : {Engine::fastest, Engine::interpreter}) {
        const Bpe bpe(*file, vocabulary, *find_pretokenizer(pre), engine);
        measure(std::string(name) + " as " + pre + (engine == Engine::fastest ? "" : " interpreted"),
                [&](auto& ids) { bpe.encode(text, ids); });
      }
    }
  }
  const auto file = tests::vocabulary_file(*data, "llama-spm");
  const Vocabulary vocabulary(*file, Vocabulary::Form::spaces);
  const Spm spm(*file, vocabulary);
  measure("llama-spm", [&](auto& ids) { spm.encode(text, true, ids); });
}

TEST(TokenizerSpeedReference, OneMegabyteOfOneThing) {
  const auto data = tests::test_data();
  if (!data) GTEST_SKIP() << "ELLM_TEST_DATA is not set";
  for (const char* name : {"qwen2", "llama-spm"}) {
    const auto tokenizer = Tokenizer::open(*tests::vocabulary_file(*data, name));
    for (const char* unit : kUnits) {
      const std::string text = repeated(unit, 1'000'000);
      EXPECT_LT(seconds([&] { EXPECT_FALSE(tokenizer->encode(text).empty()); }), kBound)
          << name << " of " << testing::PrintToString(unit);
    }
  }
}

}  // namespace
}  // namespace ellm::format
