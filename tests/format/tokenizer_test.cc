// The Tokenizer's rules on small vocabularies whose answers can be worked out by hand: merging order, byte fallback,
// spaces, special tokens, beginnings and ends, decoding.
#include "daemon/format/tokenizer.h"

#include <gtest/gtest.h>

#include "tests/format/tokenizer_files.h"

namespace ellm::format {
namespace {

using tests::kPlain;
using tests::TestVocabulary;
using Ids = std::vector<TokenId>;

constexpr Tokenizer::EncodeOptions kNoMarks{.add_special = false, .parse_special = true};

Ids bytes_of(std::string_view text, TokenId first = 0) {
  Ids ids;
  for (const char c : text) ids.push_back(static_cast<unsigned char>(c) + first);
  return ids;
}

TEST(Bpe, MergesByRankThenLeftmost) {
  TestVocabulary v = TestVocabulary::bytes();
  const TokenId bc = v.merge("b", "c"), ab = v.merge("a", "b"), abc = v.merge("a", "bc"), aa = v.merge("a", "a");
  const auto tokenizer = tests::tokenizer_of(v.bpe());
  EXPECT_EQ(tokenizer->encode("abc", kPlain), Ids{abc});  // "b c" goes first
  EXPECT_EQ(tokenizer->encode("abab", kPlain), (Ids{ab, ab}));
  EXPECT_EQ(tokenizer->encode("aaa", kPlain), (Ids{aa, 'a'}));  // the leftmost of equals
  EXPECT_EQ(tokenizer->encode("bcx", kPlain), (Ids{bc, 'x'}));
  EXPECT_EQ(tokenizer->encode("", kPlain), Ids{});
  EXPECT_EQ(tokenizer->encode(std::string("\0\xFF", 2), kPlain), (Ids{0, 255}));
  EXPECT_EQ(tokenizer->description(), "bpe (gpt-2)");
}

TEST(Bpe, MergesStayWithinPieces) {
  TestVocabulary v = TestVocabulary::bytes();
  const TokenId space_a = v.merge("\u0120", "a");
  v.merge("a", "\u0120");
  const auto tokenizer = tests::tokenizer_of(v.bpe());
  EXPECT_EQ(tokenizer->encode("a a", kPlain), (Ids{'a', space_a}));
}

TEST(Bpe, WholeWordsWhereThePreTokenizerSaysSo) {
  TestVocabulary v = TestVocabulary::bytes();
  v.merge("a", "b");
  const TokenId cab = v.add("cab");  // no merge leads there
  EXPECT_EQ(tests::tokenizer_of(v.bpe("llama-bpe"))->encode("cab", kPlain), Ids{cab});
  EXPECT_EQ(tests::tokenizer_of(v.bpe("gpt-2"))->encode("cab", kPlain), (Ids{'c', 256}));
}

TEST(Bpe, NormalisesWhereThePreTokenizerSaysSo) {
  const TestVocabulary v = TestVocabulary::bytes();
  EXPECT_EQ(tests::tokenizer_of(v.bpe("qwen2"))->encode("e\u0301", kPlain), bytes_of("\u00E9"));
  EXPECT_EQ(tests::tokenizer_of(v.bpe("gpt-2"))->encode("e\u0301", kPlain), bytes_of("e\u0301"));
}

TEST(Bpe, BytesWithoutATokenAreLeftOut) {
  TestVocabulary v;
  v.add("a");
  v.add("b");
  const TokenId ab = v.merge("a", "b");
  EXPECT_EQ(tests::tokenizer_of(v.bpe())->encode("a?b", kPlain), (Ids{0, 1}));
  EXPECT_EQ(tests::tokenizer_of(v.bpe())->encode("??", kPlain), Ids{});
  EXPECT_EQ(tests::tokenizer_of(v.bpe())->encode("ab?", kPlain), Ids{ab});
}

TEST(Spm, MergesByScoreThenLeftmost) {
  TestVocabulary v = TestVocabulary::pieces();
  for (const char* c : {"a", "b", "c", "\u2581"}) v.add(c, tests::kNormal, -100);
  const TokenId ab = v.add("ab", tests::kNormal, -2), bc = v.add("bc", tests::kNormal, -1),
                aa = v.add("aa", tests::kNormal, -2);
  const TokenId space = 262;
  const auto tokenizer = tests::tokenizer_of(v.spm());
  EXPECT_EQ(tokenizer->encode("abc", kPlain), (Ids{space, 259, bc}));
  EXPECT_EQ(tokenizer->encode("aab", kPlain), (Ids{space, aa, 260}));  // equal scores: the left one
  EXPECT_EQ(tokenizer->encode("ab ab", kPlain), (Ids{space, ab, space, ab}));
  EXPECT_EQ(tokenizer->encode("ab\u2581"
                              "ab",
                              kPlain),
            (Ids{space, ab, space, ab}));  // the mark is a space
  EXPECT_EQ(tokenizer->encode("", kPlain), Ids{});
  EXPECT_EQ(tokenizer->description(), "spm");
}

TEST(Spm, FallsBackToBytes) {
  TestVocabulary v = TestVocabulary::pieces();
  const TokenId space = v.add("\u2581"), ae = v.add("ä");
  const auto tokenizer = tests::tokenizer_of(v.spm());
  EXPECT_EQ(tokenizer->encode("äö", kPlain), (Ids{space, ae, 0xC3 + 3, 0xB6 + 3}));
  EXPECT_EQ(tokenizer->encode("\xC3", kPlain), (Ids{space, 0xC3 + 3}));  // not UTF-8
  EXPECT_EQ(tokenizer->decode(Ids{space, ae, 0xC3 + 3, 0xB6 + 3, 0xFF + 3}), "äö\xFF");
}

TEST(Spm, UnknownTokenWithoutBytes) {
  TestVocabulary v = TestVocabulary::pieces(false);
  const TokenId space = v.add("\u2581"), a = v.add("a");
  EXPECT_EQ(tests::tokenizer_of(v.spm())->encode("aöa", kPlain), (Ids{space, a, 0, a}));
}

TEST(Spm, UnusedTokensAreStepsOnly) {
  TestVocabulary v = TestVocabulary::pieces();
  const TokenId a = v.add("a", tests::kNormal, -9), b = v.add("b", tests::kNormal, -9),
                c = v.add("c", tests::kNormal, -9);
  v.add("ab", tests::kUnused, -1);
  const TokenId abc = v.add("abc", tests::kNormal, -2);
  const auto tokenizer = tests::tokenizer_of(v.spm().boolean("tokenizer.ggml.add_space_prefix", false));
  EXPECT_EQ(tokenizer->encode("abc", kPlain), Ids{abc});
  EXPECT_EQ(tokenizer->encode("ab", kPlain), (Ids{a, b}));
  EXPECT_EQ(tokenizer->encode("abb", kPlain), (Ids{a, b, b}));
  EXPECT_EQ(tokenizer->encode("cab", kPlain), (Ids{c, a, b}));
}

TEST(Spm, SpacePrefix) {
  TestVocabulary v = TestVocabulary::pieces();
  const TokenId a = v.add("a"), space = v.add("\u2581"),
                space_a = v.add(
                    "\u2581"
                    "a",
                    tests::kNormal, 1);
  const auto with = tests::tokenizer_of(v.spm()),
             without = tests::tokenizer_of(v.spm().boolean("tokenizer.ggml.add_space_prefix", false));
  EXPECT_EQ(with->encode("a", kPlain), Ids{space_a});
  EXPECT_EQ(with->encode(" a", kPlain), (Ids{space, space_a}));
  EXPECT_EQ(without->encode("a", kPlain), Ids{a});
  EXPECT_EQ(with->decode(Ids{space_a, space_a}), "a a");
  EXPECT_EQ(with->decode(Ids{1, space_a}), "a");  // behind BOS as well
  EXPECT_EQ(with->decode(Ids{space, space_a}), " a");
  EXPECT_EQ(without->decode(Ids{space_a}), " a");
  EXPECT_EQ(with->decode(Ids{1, space_a, 2}, true), "<s>a</s>");
  EXPECT_EQ(with->piece(space_a), " a");
  EXPECT_EQ(with->piece('\n' + 3), "\n");
  EXPECT_EQ(with->piece(1), "<s>");
  // llama.cpp adds the space behind every special token.
  EXPECT_EQ(with->encode("a<s>a", kNoMarks), (Ids{space_a, 1, space_a}));
}

TEST(Tokenizer, BeginningAndEnd) {
  TestVocabulary v = TestVocabulary::pieces();
  const TokenId space_a = v.add(
      "\u2581"
      "a");
  v.add("\u2581", tests::kNormal, -1), v.add("a", tests::kNormal, -1);
  const auto usual = tests::tokenizer_of(v.spm());
  EXPECT_EQ(usual->encode("a"), (Ids{1, space_a}));
  EXPECT_TRUE(usual->adds_bos());
  const auto both = tests::tokenizer_of(v.spm().boolean("tokenizer.ggml.add_eos_token", true));
  EXPECT_EQ(both->encode("a"), (Ids{1, space_a, 2}));
  EXPECT_EQ(both->encode("a", kPlain), Ids{space_a});
  const auto none = tests::tokenizer_of(v.spm().boolean("tokenizer.ggml.add_bos_token", false));
  EXPECT_EQ(none->encode("a"), Ids{space_a});
  EXPECT_FALSE(none->adds_bos());

  TestVocabulary b = TestVocabulary::bytes();
  const TokenId bos = b.add("<|begin_of_text|>", tests::kControl);
  auto file = b.bpe("gpt-2").u32("tokenizer.ggml.bos_token_id", bos);
  EXPECT_EQ(tests::tokenizer_of(file)->encode("a"), Ids{'a'});
  EXPECT_EQ(tests::tokenizer_of(file.string("tokenizer.ggml.pre", "llama-bpe"))->encode("a"), (Ids{bos, 'a'}));
  EXPECT_EQ(tests::tokenizer_of(file.boolean("tokenizer.ggml.add_bos_token", false))->encode("a"), Ids{'a'});
}

TEST(Tokenizer, SpecialTokensInText) {
  TestVocabulary v = TestVocabulary::bytes();
  const TokenId start = v.add("<|im_start|>", tests::kControl), tool = v.add("<tool>", tests::kUserDefined);
  const TokenId x = v.add("<x", tests::kUserDefined), xyz = v.add("<xyz>", tests::kUserDefined),
                unknown = v.add("<unk>", tests::kUnknown);
  v.add("<unused>", tests::kUnused);
  const auto tokenizer = tests::tokenizer_of(v.bpe());
  EXPECT_EQ(tokenizer->encode("<|im_start|>a<tool>b", kNoMarks), (Ids{start, 'a', tool, 'b'}));
  // Without parse_special only user-defined ones, which are no secret signs.
  Ids expected = bytes_of("<|im_start|>");
  expected.push_back(tool);
  EXPECT_EQ(tokenizer->encode("<|im_start|><tool>", kPlain), expected);
  EXPECT_EQ(tokenizer->encode("<unk>", kNoMarks), Ids{unknown});
  EXPECT_EQ(tokenizer->encode("<unused>", kNoMarks), bytes_of("<unused>"));
  // The longest at a place; what only begins like one is text.
  EXPECT_EQ(tokenizer->encode("<xyz><xy>", kNoMarks), (Ids{xyz, x, 'y', '>'}));
  EXPECT_EQ(tokenizer->encode("<x", kNoMarks), Ids{x});
  EXPECT_EQ(tokenizer->encode("<|im_start|", kNoMarks), bytes_of("<|im_start|"));
  EXPECT_EQ(tokenizer->encode("<<|im_start|>>", kNoMarks), (Ids{'<', start, '>'}));
  EXPECT_EQ(tokenizer->decode(Ids{start, 'a', tool, unknown}), "a<tool>");
  EXPECT_EQ(tokenizer->decode(Ids{start, 'a', tool, unknown}, true), "<|im_start|>a<tool><unk>");
  EXPECT_TRUE(tokenizer->is_control(start));
  EXPECT_FALSE(tokenizer->is_control(tool));
  EXPECT_FALSE(tokenizer->is_control('a'));
}

TEST(Tokenizer, IdsOutsideTheVocabulary) {
  const auto tokenizer = tests::tokenizer_of(TestVocabulary::bytes().bpe());
  EXPECT_EQ(tokenizer->decode(Ids{'a', 256, UINT32_MAX, 'b'}), "ab");
  EXPECT_EQ(tokenizer->piece(256), "");
  EXPECT_FALSE(tokenizer->is_control(256));
  EXPECT_FALSE(tokenizer->is_end(UINT32_MAX));
  EXPECT_EQ(tokenizer->vocabulary_size(), 256u);
  EXPECT_EQ(tokenizer->bos(), std::nullopt);
  EXPECT_EQ(tokenizer->eos(), std::nullopt);
}

TEST(Tokenizer, Ends) {
  TestVocabulary v = TestVocabulary::bytes();
  const TokenId eos = v.add("<done>"), eot = v.add("<turn>", tests::kControl),
                eom = v.add("<message>", tests::kControl);
  const TokenId im_end = v.add("<|im_end|>", tests::kControl), user = v.add("<|eot_id|>", tests::kUserDefined);
  const TokenId plain = v.add("<|endoftext|>"), other = v.add("<|im_start|>", tests::kControl),
                end = v.add("<|end|>", tests::kControl);
  auto file = v.bpe()
                  .u32("tokenizer.ggml.eos_token_id", eos)
                  .u32("tokenizer.ggml.eot_token_id", eot)
                  .u32("tokenizer.ggml.eom_token_id", eom);
  const auto tokenizer = tests::tokenizer_of(file);
  for (const TokenId id : {eos, eot, eom, im_end, user, end})
    EXPECT_TRUE(tokenizer->is_end(id)) << tokenizer->piece(id);
  for (const TokenId id : {plain, other, TokenId{'a'}}) EXPECT_FALSE(tokenizer->is_end(id)) << tokenizer->piece(id);
  EXPECT_EQ(tokenizer->eos(), eos);

  // Harmony: a turn has several messages, "<|end|>" closes one.
  const TokenId turn_end = v.add("<|return|>", tests::kControl), call = v.add("<|call|>", tests::kControl);
  const auto harmony = tests::tokenizer_of(v.bpe());
  EXPECT_TRUE(harmony->is_end(turn_end));
  EXPECT_TRUE(harmony->is_end(call));
  EXPECT_FALSE(harmony->is_end(end));
}

}  // namespace
}  // namespace ellm::format
