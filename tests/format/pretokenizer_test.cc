// Pre-tokenizers: pieces as Hugging Face's tokenizers cut them (tests/golden/pretokenizer_pieces.jsonl, made with that
// library from the published definitions and a vocabulary of single bytes), the same with and without PCRE2's JIT and
// with and without our short cut for ASCII words, on any bytes.
#include "daemon/format/pretokenizer.h"

#include <gtest/gtest.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <boost/json.hpp>
#include <cstdlib>
#include <fstream>
#include <numeric>
#include <random>
#include <set>

#include "tests/support/temp_dir.h"

namespace ellm::format {
namespace {

using Engine = PreTokenizer::Engine;

std::vector<uint32_t> piece_lengths(const PreTokenizer& pretokenizer, std::string_view text) {
  std::vector<uint32_t> ends;
  pretokenizer.split(text, ends);
  std::vector<uint32_t> lengths(ends.size());
  std::adjacent_difference(ends.begin(), ends.end(), lengths.begin());
  return lengths;
}

std::vector<boost::json::object> golden() {
  std::ifstream in(ELLM_GOLDEN_DIR "/pretokenizer_pieces.jsonl");
  std::vector<boost::json::object> rows;
  for (std::string line; std::getline(in, line);) rows.push_back(boost::json::parse(line).as_object());
  return rows;
}

TEST(PreTokenizer, PiecesOfHuggingFace) {
  const auto rows = golden();
  ASSERT_GE(rows.size(), 49u);
  size_t families = 0;
  for (const auto& [name, ignored] : rows.front()) {
    if (name == "text") continue;
    ++families;
    const PreTokenizerSpec* spec = find_pretokenizer(std::string_view(name));
    ASSERT_TRUE(spec) << name;
    for (const Engine engine : {Engine::fastest, Engine::interpreter}) {
      const PreTokenizer pretokenizer(*spec, engine);
      for (const auto& row : rows) {
        const std::string text(row.at("text").as_string());
        EXPECT_EQ(piece_lengths(pretokenizer, text), boost::json::value_to<std::vector<uint32_t>>(row.at(name)))
            << name << ": " << text;
      }
    }
  }
  EXPECT_EQ(families, 13u);
}

TEST(PreTokenizer, EveryFamilyHasVectors) {
  const auto rows = golden();
  std::set<std::string> regexes;  // those that some golden column runs
  for (const auto& [name, ignored] : rows.at(0))
    if (const auto* spec = find_pretokenizer(std::string_view(name)))
      for (const SplitStage& stage : spec->stages) regexes.insert(stage.regex);
  std::set<std::string_view> names;
  for (const PreTokenizerSpec& spec : pretokenizers()) {
    for (const SplitStage& stage : spec.stages)
      EXPECT_TRUE(regexes.contains(stage.regex)) << spec.names[0] << ": " << stage.regex;
    for (const std::string_view name : spec.names) EXPECT_TRUE(names.insert(name).second) << name << " twice";
  }
  EXPECT_EQ(find_pretokenizer("nosuch"), nullptr);
  EXPECT_EQ(find_pretokenizer(""), nullptr);
}

// Characters that the expressions treat differently, and bytes that are not UTF-8.
const char* const kParts[] = {"a",
                              "Bc",
                              "hello",
                              "X",
                              "'s",
                              "'LL",
                              "'",
                              " ",
                              "  ",
                              "\n",
                              "\r\n",
                              "\t",
                              "\v",
                              "1",
                              "23",
                              "456",
                              "½",
                              "é",
                              "e\u0301",
                              "Ж",
                              "ǅ",
                              "漢",
                              "かな",
                              "\u3000",
                              "\u00a0",
                              "\u180e",
                              "\u2028",
                              "\u0085",
                              "🙂",
                              "\u200d",
                              "!",
                              "?.",
                              "/",
                              "$+",
                              "_",
                              "<|",
                              "«",
                              "。",
                              "\xff",
                              "\xc3",
                              "\xe6\xbc",
                              "\xf0\x9f\x99",
                              "\xed\xa0\x80",
                              "\xc0\x80",
                              "\x80"};

std::string random_text(std::mt19937& random, size_t parts) {
  std::string text;
  for (size_t i = 0; i < parts; ++i) text += kParts[random() % std::size(kParts)];
  return text;
}

TEST(PreTokenizer, ShortCutsChangeNothing) {
  std::mt19937 random(1);
  for (const PreTokenizerSpec& spec : pretokenizers()) {
    PreTokenizerSpec plain = spec;
    for (SplitStage& stage : plain.stages) stage.covers = stage.ascii_words = false;
    const PreTokenizer fast(spec), interpreted(spec, Engine::interpreter), slow(plain);
    EXPECT_FALSE(interpreted.compiled());
    for (int i = 0; i < 1500; ++i) {
      const std::string text = random_text(random, 1 + random() % 24);
      const auto lengths = piece_lengths(slow, text);
      ASSERT_EQ(piece_lengths(fast, text), lengths) << spec.names[0] << ": " << testing::PrintToString(text);
      ASSERT_EQ(piece_lengths(interpreted, text), lengths) << spec.names[0] << ": " << testing::PrintToString(text);
      ASSERT_EQ(std::accumulate(lengths.begin(), lengths.end(), 0u), text.size());
      ASSERT_TRUE(std::ranges::find(lengths, 0u) == lengths.end());
    }
  }
}

TEST(PreTokenizer, BytesThatAreNotUtf8CountAsControlCharacters) {
  const PreTokenizer gpt2(*find_pretokenizer("gpt-2"));
  using Lengths = std::vector<uint32_t>;
  EXPECT_EQ(piece_lengths(gpt2, "ab\xff\xfe cd"), piece_lengths(gpt2, "ab\x01\x01 cd"));
  EXPECT_EQ(piece_lengths(gpt2, "ab\xff\xfe cd"), (Lengths{2, 2, 3}));
  EXPECT_EQ(piece_lengths(gpt2, "\xe6\xbc"), (Lengths{2}));  // a truncated character
  EXPECT_EQ(piece_lengths(gpt2, std::string("a\0b", 3)), (Lengths{1, 1, 1}));
  EXPECT_TRUE(piece_lengths(gpt2, "").empty());
}

// systemd's MemoryDenyWriteExecute and Linux's own form of it refuse executable memory: the interpreter takes over. The
// test runs itself in a fresh process, since memory that is executable already stays so.
TEST(PreTokenizer, WorksWithoutExecutableMemory) {
  constexpr char marker[] = "ELLM_TEST_WITHOUT_EXECUTABLE_MEMORY";
  const PreTokenizer pretokenizer(*find_pretokenizer("qwen2"));
  if (std::getenv(marker)) {
    EXPECT_FALSE(pretokenizer.compiled());
    EXPECT_EQ(piece_lengths(pretokenizer, "Hello, it's 12 漢字\n\n  words"),
              (std::vector<uint32_t>{5, 1, 3, 2, 1, 1, 1, 7, 2, 1, 6}));
    return;
  }
  EXPECT_TRUE(pretokenizer.compiled());
  constexpr int set_mdwe = 65, refuse_exec_gain = 1;  // PR_SET_MDWE, since Linux 6.3; kept over exec
  constexpr int refused_by_kernel = 77;
  const pid_t child = ::fork();
  if (child == 0) {
    if (::prctl(set_mdwe, refuse_exec_gain, 0, 0, 0) != 0) ::_exit(refused_by_kernel);
    ::setenv(marker, "1", 1);
    ::execl("/proc/self/exe", "tokenizer_test", "--gtest_filter=PreTokenizer.WorksWithoutExecutableMemory", nullptr);
    ::_exit(1);
  }
  int status = 0;
  ASSERT_EQ(::waitpid(child, &status, 0), child);
  ASSERT_TRUE(WIFEXITED(status)) << "signal " << WTERMSIG(status);
  if (WEXITSTATUS(status) == refused_by_kernel) GTEST_SKIP() << "this kernel has no PR_SET_MDWE";
  EXPECT_EQ(WEXITSTATUS(status), 0);
}

}  // namespace
}  // namespace ellm::format
