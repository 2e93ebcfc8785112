// Streaming: the pieces put together are the whole text, and none of them ends inside a character.
#include <gtest/gtest.h>

#include <random>

#include "daemon/format/utf8.h"
#include "tests/format/tokenizer_files.h"

namespace ellm::format {
namespace {

using tests::TestVocabulary;

std::string streamed(const std::shared_ptr<const Tokenizer>& tokenizer, const std::vector<TokenId>& ids, bool special) {
  StreamDecoder decoder(tokenizer, true, special);
  std::string text;
  for (const TokenId id : ids) {
    const std::string part = decoder.push(id);
    EXPECT_EQ(valid_utf8_prefix(part), part.size());
    text += part;
  }
  return text + decoder.finish();
}

void expect_streams_like_whole(const std::shared_ptr<const Tokenizer>& tokenizer, int rounds) {
  std::mt19937 random(1);
  for (int i = 0; i < rounds; ++i) {
    std::vector<TokenId> ids(random() % 30);
    for (TokenId& id : ids) id = random() % (tokenizer->vocabulary_size() + 2);
    for (const bool special : {false, true})
      ASSERT_EQ(streamed(tokenizer, ids, special), replace_invalid_utf8(tokenizer->decode(ids, special)))
          << testing::PrintToString(ids);
  }
}

// A vocabulary in which characters fall apart: lead and continuation bytes are frequent.
TestVocabulary splitting() {
  TestVocabulary v = TestVocabulary::pieces();
  for (const char* text : {"\u2581",
                           "\u2581"
                           "a",
                           "ab", "漢", "🙂", "\xF0\x9F", "\x99\x82", "\xE6", "\xBC\xA2", "\xC3",
                           "\xA9"
                           "x",
                           "\xED\xA0", "\xFF"})
    for (int i = 0; i < 20; ++i) v.add(i == 0 ? text : text + std::string(static_cast<size_t>(i % 2), ' '));
  v.add("<tool>", tests::kUserDefined);
  return v;
}

TEST(StreamDecoder, RandomIdsLikeWhole) {
  expect_streams_like_whole(tests::tokenizer_of(splitting().spm()), 20'000);
  expect_streams_like_whole(tests::tokenizer_of(splitting().spm().boolean("tokenizer.ggml.add_space_prefix", false)),
                            5'000);
  expect_streams_like_whole(tests::tokenizer_of(TestVocabulary::bytes().bpe()), 20'000);
}

TEST(StreamDecoderReference, RandomIdsLikeWhole) {
  const auto data = tests::test_data();
  if (!data) GTEST_SKIP() << "ELLM_TEST_DATA is not set";
  for (const char* name : {"llama-spm", "gpt-2", "qwen2"})
    expect_streams_like_whole(Tokenizer::open(*tests::vocabulary_file(*data, name)), 5'000);
}

TEST(StreamDecoder, HoldsBackUntilACharacterIsWhole) {
  const auto tokenizer = tests::tokenizer_of(TestVocabulary::bytes().bpe());
  StreamDecoder decoder(tokenizer, true);
  const std::string smile = "\xF0\x9F\x99\x82";
  EXPECT_EQ(decoder.push('a'), "a");
  EXPECT_EQ(decoder.push(0xF0), "");
  EXPECT_EQ(decoder.push(0x9F), "");
  EXPECT_EQ(decoder.push(0x99), "");
  EXPECT_EQ(decoder.push(0x82), smile);
  EXPECT_EQ(decoder.push(0xF0), "");
  EXPECT_EQ(decoder.push('b'),
            "\uFFFD"
            "b");  // it never came
  EXPECT_EQ(decoder.push(0xFF), "\uFFFD");
  EXPECT_EQ(decoder.push(0xE6), "");
  EXPECT_EQ(decoder.finish(), "\uFFFD");
  EXPECT_EQ(decoder.finish(), "");
}

TEST(StreamDecoder, AddedSpaceAtTheBeginning) {
  TestVocabulary v = TestVocabulary::pieces();
  const TokenId space_a = v.add(
                    "\u2581"
                    "a"),
                tool = v.add("<tool>", tests::kUserDefined);
  const auto tokenizer = tests::tokenizer_of(v.spm());
  StreamDecoder first(tokenizer, true), later(tokenizer, false), special(tokenizer, true, true);
  EXPECT_EQ(first.push(1), "");  // BOS is no text
  EXPECT_EQ(first.push(space_a), "a");
  EXPECT_EQ(first.push(space_a), " a");
  EXPECT_EQ(later.push(space_a), " a");
  EXPECT_EQ(special.push(1), "<s>");
  EXPECT_EQ(special.push(space_a), "a");
  EXPECT_EQ(special.push(tool), "<tool>");
  EXPECT_EQ(special.push(2), "</s>");
}

}  // namespace
}  // namespace ellm::format
