// UTF-8 steps and replacement against the Unicode standard's examples and a brute-force twin; NFC against utf8proc over
// whole strings, published equivalences, and long runs of marks.
#include "daemon/format/utf8.h"

#include <gtest/gtest.h>
#include <utf8proc.h>

#include <cstdlib>
#include <random>

#include "daemon/format/normalize.h"

namespace ellm::format {
namespace {

TEST(Utf8, ReplacesMaximalSubparts) {
  const std::string r = "\xEF\xBF\xBD";
  // Tables 3-8 to 3-11 of the Unicode standard.
  EXPECT_EQ(replace_invalid_utf8("\xC0\xAF\xE0\x80\xBF\xF0\x81\x82\x41"), r + r + r + r + r + r + r + r + "A");
  EXPECT_EQ(replace_invalid_utf8("\xED\xA0\x80\xED\xBF\xBF\xED\xAF\x41"), r + r + r + r + r + r + r + r + "A");
  EXPECT_EQ(replace_invalid_utf8("\xF4\x91\x92\x93\xFF\x41\x80\xBF\x42"), r + r + r + r + r + "A" + r + r + "B");
  EXPECT_EQ(replace_invalid_utf8("\xE1\x80\xE2\xF0\x91\x92\xF1\xBF\x41"), r + r + r + r + "A");
  EXPECT_EQ(replace_invalid_utf8(std::string("a\0b", 3)), std::string("a\0b", 3));
  EXPECT_EQ(replace_invalid_utf8("\xF0\x9F\x99"), r);
}

TEST(Utf8, EveryCodePoint) {
  for (char32_t c = 0; c <= 0x10FFFF; ++c) {
    if (c >= 0xD800 && c < 0xE000) continue;
    std::string text;
    append_utf8(text, c);
    const Utf8Step step = utf8_step(text.data(), text.data() + text.size());
    ASSERT_EQ(step.length, text.size()) << std::hex << static_cast<uint32_t>(c);
    ASSERT_EQ(step.kind, Utf8::character);
    ASSERT_EQ(utf8_code_point(text.data(), step.length), c);
    for (size_t n = 1; n < text.size(); ++n) ASSERT_EQ(utf8_step(text.data(), text.data() + n).kind, Utf8::truncated);
    ASSERT_EQ(valid_utf8_prefix(text), text.size());
  }
}

TEST(Utf8, EveryThreeBytesEqualUtf8proc) {
  for (uint32_t bits = 0; bits < 1u << 24; bits += 1 + bits % 7) {  // a seventh of all, in a fixed order
    const char bytes[3] = {static_cast<char>(bits >> 16), static_cast<char>(bits >> 8), static_cast<char>(bits)};
    utf8proc_int32_t point = -1;
    const auto length = utf8proc_iterate(reinterpret_cast<const utf8proc_uint8_t*>(bytes), 3, &point);
    const Utf8Step step = utf8_step(bytes, bytes + 3);
    ASSERT_EQ(step.kind == Utf8::character, length > 0) << std::hex << bits;
    if (length > 0) {
      ASSERT_EQ(static_cast<utf8proc_ssize_t>(step.length), length) << std::hex << bits;
    }
  }
}

std::string whole_string_nfc(const std::string& text) {
  utf8proc_uint8_t* const out = utf8proc_NFC(reinterpret_cast<const utf8proc_uint8_t*>(text.c_str()));
  const std::string result(reinterpret_cast<char*>(out));
  std::free(out);
  return result;
}

TEST(Nfc, Examples) {  // UAX #15, figures 3 to 6
  EXPECT_EQ(to_nfc("e\u0301"), "\u00E9");
  EXPECT_EQ(to_nfc("\u212B"), "\u00C5");
  EXPECT_EQ(to_nfc("\u2126"), "\u03A9");
  EXPECT_EQ(to_nfc("\u1E69"), "\u1E69");
  EXPECT_EQ(to_nfc("\u1E0B\u0323"), "\u1E0D\u0307");
  EXPECT_EQ(to_nfc("q\u0307\u0323"), "q\u0323\u0307");
  EXPECT_EQ(to_nfc("\u1100\u1161\u11A8"), "\uAC01");
  EXPECT_EQ(to_nfc("\u304B\u3099"), "\u304C");
  EXPECT_EQ(to_nfc("\uFB01"), "\uFB01");        // compatibility characters stay
  EXPECT_EQ(to_nfc("\u0958"), "\u0915\u093C");  // excluded from composition
  EXPECT_EQ(to_nfc("x\u0301"), "x\u0301");
}

TEST(Nfc, EveryCodePointAfterALetter) {
  for (char32_t c = 1; c <= 0x10FFFF; ++c) {
    if (c >= 0xD800 && c < 0xE000) continue;
    std::string text = "a";
    append_utf8(text, c);
    const std::string expected = whole_string_nfc(text);
    ASSERT_EQ(to_nfc(text), expected) << std::hex << static_cast<uint32_t>(c);
    if (expected != text) {
      ASSERT_FALSE(is_surely_nfc(text)) << std::hex << static_cast<uint32_t>(c);
    }
  }
}

TEST(Nfc, RandomStrings) {
  // Starters, marks of several classes, characters that compose with what stands before, Hangul jamo and syllables.
  const char* const parts[] = {
      "a",      "e",      "\u00E9", "\u0301", "\u0323", "\u0327",     "\u0344",     "\u0345",     "\u1100", "\u1161",
      "\u11A8", "\uAC00", "\uAC01", "\u304B", "\u3099", "\u0915",     "\u093C",     "\u0958",     "\u0F71", "\u0F72",
      "\u0F73", "\u212B", "\u1E0B", "漢",     "\uF900", "\U0001D15E", "\U000110AB", "\U000110BA", " ",      "\n"};
  std::mt19937 random(3);
  size_t changed = 0;
  for (int i = 0; i < 50'000; ++i) {
    std::string text;
    for (size_t n = 1 + random() % 10; n > 0; --n) text += parts[random() % std::size(parts)];
    const std::string expected = whole_string_nfc(text);
    ASSERT_EQ(to_nfc(text), expected) << testing::PrintToString(text);
    changed += expected != text;
    if (expected != text) {
      ASSERT_FALSE(is_surely_nfc(text));
    }
  }
  EXPECT_GT(changed, 10'000u);
}

TEST(Nfc, BytesThatAreNotUtf8StandBetween) {
  EXPECT_EQ(to_nfc("\xFF"
                   "e\u0301\xC3"),
            "\xFF\u00E9\xC3");
  EXPECT_EQ(to_nfc("e\xFF\u0301"), "e\xFF\u0301");
  EXPECT_EQ(to_nfc("\u0301"), "\u0301");
  EXPECT_EQ(to_nfc(""), "");
}

TEST(Nfc, LongRunOfMarks) {
  std::string text = "a";
  const int n = 200'000;
  for (int i = 0; i < n; ++i) text += "\u0304\u0323";
  const std::string out = to_nfc(text);
  // All marks of the lower class stand before those of the higher; one of them has composed with the letter.
  ASSERT_EQ(out.substr(0, 3), "\u1EA1");
  size_t at = 3;
  for (int i = 0; i < n - 1; ++i, at += 2) ASSERT_EQ(out.substr(at, 2), "\u0323");
  for (int i = 0; i < n; ++i, at += 2) ASSERT_EQ(out.substr(at, 2), "\u0304");
  EXPECT_EQ(at, out.size());
}

}  // namespace
}  // namespace ellm::format
