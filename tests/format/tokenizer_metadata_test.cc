// What a file may get wrong about its vocabulary: an error that names the key, or a tokenizer that copes.
#include <gtest/gtest.h>

#include <cmath>

#include "tests/format/tokenizer_files.h"

namespace ellm::format {
namespace {

using tests::GgufBuilder;
using tests::kPlain;
using tests::TestVocabulary;
using Ids = std::vector<TokenId>;

/// The message of the FormatError, "" where the tokenizer opens.
std::string refusal(const GgufBuilder& file) {
  try {
    tests::tokenizer_of(file);
  } catch (const FormatError& error) {
    return error.what();
  }
  return "";
}

GgufBuilder spm() {
  TestVocabulary v = TestVocabulary::pieces();
  for (const char* c : {"a", "b", "\u2581"}) v.add(c, tests::kNormal, -5);
  v.add("ab", tests::kNormal, -1);
  return v.spm();
}
GgufBuilder bpe() {
  TestVocabulary v = TestVocabulary::bytes();
  v.merge("a", "b");
  return v.bpe();
}

TEST(TokenizerMetadata, ErrorsNameTheKey) {
  const struct {
    GgufBuilder file;
    const char* says;
  } cases[] = {
      {spm().remove("tokenizer.ggml.model"), "'tokenizer.ggml.model' is missing"},
      {spm().string("tokenizer.ggml.model", "nosuch"), "'tokenizer.ggml.model': unknown tokenizer 'nosuch'"},
      {spm().remove("tokenizer.ggml.tokens"), "'tokenizer.ggml.tokens' is missing"},
      {spm().strings("tokenizer.ggml.tokens", {}), "'tokenizer.ggml.tokens'"},
      {spm().array<int32_t>("tokenizer.ggml.tokens", 5, std::vector<int32_t>(263)), "tokenizer.ggml.tokens"},
      {spm().remove("tokenizer.ggml.scores"), "'tokenizer.ggml.scores' is missing"},
      {spm().array<float>("tokenizer.ggml.scores", 6, {1}), "'tokenizer.ggml.scores': 1 entries for 263 tokens"},
      {spm().array<int32_t>("tokenizer.ggml.scores", 5, std::vector<int32_t>(263)), "tokenizer.ggml.scores"},
      {spm().array<int32_t>("tokenizer.ggml.token_type", 5, {1}),
       "'tokenizer.ggml.token_type': 1 entries for 263 tokens"},
      {spm().array<int32_t>("tokenizer.ggml.token_type", 5, std::vector<int32_t>(264, 1)),
       "'tokenizer.ggml.token_type'"},
      {spm().array<uint8_t>("tokenizer.ggml.token_type", 0, std::vector<uint8_t>(263, 1)), "tokenizer.ggml.token_type"},
      {spm().string("tokenizer.ggml.eos_token_id", "2"), "tokenizer.ggml.eos_token_id"},
      {spm().string("tokenizer.ggml.add_bos_token", "yes"), "tokenizer.ggml.add_bos_token"},
      {bpe().remove("tokenizer.ggml.merges"), "'tokenizer.ggml.merges' is missing"},
      {bpe().array<int32_t>("tokenizer.ggml.merges", 5, {1, 2}), "tokenizer.ggml.merges"},
      {bpe().string("tokenizer.ggml.pre", "nosuch"), "'tokenizer.ggml.pre': unknown pre-tokenizer 'nosuch'"},
      {bpe().u32("tokenizer.ggml.pre", 3), "tokenizer.ggml.pre"},
  };
  for (const auto& [file, says] : cases) {
    const std::string message = refusal(file);
    EXPECT_NE(message.find(says), std::string::npos) << "expected: " << says << "\nmessage: " << message;
    EXPECT_NE(message.find("model.gguf"), std::string::npos) << message;
  }
  EXPECT_EQ(refusal(spm()), "");
  EXPECT_EQ(refusal(bpe()), "");
}

TEST(TokenizerMetadata, ErrorsQuoteWithCare) {
  for (const char* key : {"tokenizer.ggml.pre", "tokenizer.ggml.model"}) {
    const std::string message = refusal(bpe().string(key, "\x1b[2J" + std::string(1 << 20, 'x')));
    EXPECT_NE(message.find(key), std::string::npos) << message;
    EXPECT_LT(message.size(), 500u);
    EXPECT_EQ(message.find('\x1b'), std::string::npos);
  }
}

TEST(TokenizerMetadata, MissingPreTokenizerIsGpt2) {
  const auto tokenizer = tests::tokenizer_of(bpe().remove("tokenizer.ggml.pre"));
  EXPECT_EQ(tokenizer->description(), "bpe (default)");
  EXPECT_EQ(tokenizer->encode("ab c", kPlain), (Ids{256, ' ', 'c'}));
}

TEST(TokenizerMetadata, MissingTypesAreNormal) {
  EXPECT_EQ(tests::tokenizer_of(bpe().remove("tokenizer.ggml.token_type"))->encode("ab", kPlain), Ids{256});
}

TEST(TokenizerMetadata, UnheardOfTypesAreNormal) {
  TestVocabulary v = TestVocabulary::pieces();
  const TokenId a = v.add("a", 77), b = v.add("b", -1), space = v.add("\u2581", 0);
  const auto tokenizer = tests::tokenizer_of(v.spm());
  EXPECT_EQ(tokenizer->encode("ab", kPlain), (Ids{space, a, b}));
  EXPECT_EQ(tokenizer->decode(Ids{space, a, b}), "ab");
}

TEST(TokenizerMetadata, DoublesAndEmptyTexts) {
  TestVocabulary v = TestVocabulary::pieces();
  const TokenId space = v.add("\u2581"), first = v.add("a"), second = v.add("a"), empty = v.add("");
  v.add("", tests::kControl), v.add("", tests::kUserDefined);
  const TokenId mark = v.add("<m>", tests::kControl);
  v.add("<m>", tests::kControl);
  const auto tokenizer = tests::tokenizer_of(v.spm());
  EXPECT_EQ(tokenizer->encode("a<m>", {.add_special = false}), (Ids{space, first, mark}));
  EXPECT_EQ(tokenizer->decode(Ids{first, second, empty}), "aa");
}

TEST(TokenizerMetadata, ByteTokensThatAreNone) {
  TestVocabulary v = TestVocabulary::pieces(false);
  const TokenId space = v.add("\u2581");
  for (const char* text : {"<0x-1>", "<0xZZ>", "<0x4>", "<0x041>", "<0x41", "A", "", "<0x+4>", "<0x 4>"})
    v.add(text, tests::kByte);
  const TokenId real = v.add("<0x42>", tests::kByte), lower = v.add("<0xc3>", tests::kByte);
  const auto tokenizer = tests::tokenizer_of(v.spm());
  EXPECT_EQ(tokenizer->encode("B\xC3", kPlain), (Ids{space, real, lower}));
  EXPECT_EQ(tokenizer->encode("C", kPlain), (Ids{space, 0}));
  EXPECT_EQ(tokenizer->piece(real), "B");
  EXPECT_EQ(tokenizer->piece(space + 1), "<0x-1>");
}

TEST(TokenizerMetadata, TextsThatAreNotUtf8) {
  TestVocabulary v = TestVocabulary::pieces();
  const TokenId odd = v.add("\xFF\xFE\x80", tests::kNormal, 1), space = v.add("\u2581");
  v.add("\xFF", tests::kNormal, -1), v.add("\xFE", tests::kNormal, -1), v.add("\x80", tests::kNormal, -1);
  v.add("\xFF\xFE", tests::kNormal, 0);
  const auto tokenizer = tests::tokenizer_of(v.spm());
  EXPECT_EQ(tokenizer->encode("\xFF\xFE\x80", kPlain), (Ids{space, odd}));
  EXPECT_EQ(tokenizer->decode(Ids{odd}), "\xFF\xFE\x80");

  TestVocabulary b = TestVocabulary::bytes();
  const TokenId raw = b.add("\xFF\xFE"), mixed = b.add("a \u6F22");  // outside of the alphabet: as they stand
  EXPECT_EQ(tests::tokenizer_of(b.bpe())->piece(raw), "\xFF\xFE");
  EXPECT_EQ(tests::tokenizer_of(b.bpe())->piece(mixed), "a \u6F22");
}

TEST(TokenizerMetadata, ScoresThatAreNoNumbers) {
  TestVocabulary v = TestVocabulary::pieces();
  for (const char* c : {"a", "b", "c", "\u2581"}) v.add(c, tests::kNormal, NAN);
  const TokenId ab = v.add("ab", tests::kNormal, NAN), bc = v.add("bc", tests::kNormal, -1e30f),
                aa = v.add("aa", tests::kNormal, INFINITY);
  const auto tokenizer = tests::tokenizer_of(v.spm().boolean("tokenizer.ggml.add_space_prefix", false));
  EXPECT_EQ(tokenizer->encode("abc", kPlain), (Ids{259, bc}));  // NaN comes after every number
  EXPECT_EQ(tokenizer->encode("ab", kPlain), Ids{ab});
  EXPECT_EQ(tokenizer->encode("aab", kPlain), (Ids{aa, 260}));
}

TEST(TokenizerMetadata, SpecialIdsOutOfRange) {
  for (const uint32_t id : {263u, 0xFFFFFFFFu}) {
    auto file = bpe()
                    .u32("tokenizer.ggml.bos_token_id", id)
                    .u32("tokenizer.ggml.eos_token_id", id)
                    .boolean("tokenizer.ggml.add_bos_token", true);
    const auto tokenizer = tests::tokenizer_of(file);
    EXPECT_EQ(tokenizer->bos(), std::nullopt);
    EXPECT_EQ(tokenizer->eos(), std::nullopt);
    EXPECT_FALSE(tokenizer->adds_bos());
    EXPECT_FALSE(tokenizer->is_end(id));
    EXPECT_EQ(tokenizer->encode("ab"), Ids{256});
  }
  EXPECT_EQ(tests::tokenizer_of(bpe().i32("tokenizer.ggml.eos_token_id", -1))->eos(), std::nullopt);
  EXPECT_EQ(tests::tokenizer_of(bpe().u64("tokenizer.ggml.eos_token_id", 1ull << 32))->eos(), std::nullopt);
  EXPECT_EQ(tests::tokenizer_of(bpe().i64("tokenizer.ggml.eos_token_id", 7))->eos(), 7u);
  // A SentencePiece vocabulary has its usual places, if the tokens there are what they should be.
  EXPECT_EQ(tests::tokenizer_of(spm().u32("tokenizer.ggml.bos_token_id", 0xFFFFFFFFu))->bos(), 1u);
  EXPECT_EQ(tests::tokenizer_of(spm().remove("tokenizer.ggml.eos_token_id"))->eos(), 2u);
  EXPECT_EQ(tests::tokenizer_of(spm().remove("tokenizer.ggml.eos_token_id").remove("tokenizer.ggml.token_type"))->eos(),
            std::nullopt);
}

TEST(TokenizerMetadata, MergesThatNameNothing) {
  TestVocabulary v = TestVocabulary::bytes();
  v.merges = {"", " ", "the", "q zz", "th qq", "x y", " a", "a ", "a  b", "\xFF \xFE"};
  const TokenId ab = v.merge("a", "b");
  v.merges.push_back("a b");  // twice: the first counts
  const TokenId abc = v.merge("ab", "c");
  const auto tokenizer = tests::tokenizer_of(v.bpe());
  EXPECT_EQ(tokenizer->encode("abc", kPlain), Ids{abc});
  EXPECT_EQ(tokenizer->encode("abxy", kPlain), (Ids{ab, 'x', 'y'}));
  EXPECT_EQ(tokenizer->encode("the", kPlain), (Ids{'t', 'h', 'e'}));
}

TEST(TokenizerMetadata, LongToken) {
  TestVocabulary v = TestVocabulary::pieces();
  const std::string text(1 << 20, 'x');
  const TokenId id = v.add(text), mark = v.add("<" + text, tests::kControl);
  v.add("x"), v.add("\u2581");
  const auto tokenizer = tests::tokenizer_of(v.spm());
  EXPECT_EQ(tokenizer->piece(id), text);
  EXPECT_EQ(tokenizer->encode("<" + text, {.add_special = false}), Ids{mark});
  EXPECT_EQ(tokenizer->decode(tokenizer->encode(text, kPlain)), text);
}

}  // namespace
}  // namespace ellm::format
