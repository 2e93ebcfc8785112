// The pre-tokenizers that we know, one entry each. The expressions are those of the models' published tokenizer.json,
// with two differences of notation: \s is Unicode's White_Space, spelt out since PCRE2's own has U+180E too, and
// alternatives that cannot matter are left out. A new one is an entry here and a case in the test that runs its
// vectors.
#include <algorithm>

#include "daemon/format/pretokenizer.h"

#define WS "\\t-\\r \\x{85}\\x{A0}\\x{1680}\\x{2000}-\\x{200A}\\x{2028}\\x{2029}\\x{202F}\\x{205F}\\x{3000}"
#define TRAILING_SPACE "[" WS "]+(?![^" WS "])|[" WS "]+"
#define CONTRACTIONS "'(?i:s|t|re|ve|m|ll|d)"

namespace ellm::format {
namespace {

constexpr SplitStage kGpt2 = {"'(?:s|t|re|ve|m|ll|d)| ?\\p{L}+| ?\\p{N}+| ?[^" WS "\\p{L}\\p{N}]+|" TRAILING_SPACE,
                              true, true};
constexpr SplitStage kEachDigit = {"\\p{N}", false, false};

// The family of GPT-4's: `digits` is the alternative for numbers, `mark` what counts as part of a word beside letters.
#define GPT4(mark, digits)                                                                 \
  CONTRACTIONS "|[^\\r\\n\\p{L}\\p{N}]?[\\p{L}" mark "]+|" digits "| ?[^" WS "\\p{L}" mark \
               "\\p{N}]+[\\r\\n]*|"                                                        \
               "[" WS "]*[\\r\\n]+|" TRAILING_SPACE
constexpr SplitStage kQwen2 = {GPT4("", "\\p{N}"), true, true};
constexpr SplitStage kQwen35 = {GPT4("\\p{M}", "\\p{N}"), true, true};
constexpr SplitStage kSeedCoder = {CONTRACTIONS "|[^\\r\\n\\p{L}\\p{N}]?\\p{L}+|\\p{N}| ?[^" WS "\\p{L}\\p{N}]+|[" WS
                                                "]*[\\r\\n]+|" TRAILING_SPACE,
                                   true, true};
constexpr SplitStage kLlama3 = {GPT4("", "\\p{N}{1,3}"), true, true};

// The family of GPT-4o's, which cuts camelCase: a word is upper-case letters and then lower-case ones, one of both at
// least.
#define UPPER "[\\p{Lu}\\p{Lt}\\p{Lm}\\p{Lo}\\p{M}]"
#define LOWER "[\\p{Ll}\\p{Lm}\\p{Lo}\\p{M}]"
#define GPT4O(suffix, digits)                                                                                         \
  "[^\\r\\n\\p{L}\\p{N}]?" UPPER "*" LOWER "+" suffix "|[^\\r\\n\\p{L}\\p{N}]?" UPPER "+" LOWER "*" suffix "|" digits \
  "| ?[^" WS "\\p{L}\\p{N}]+[\\r\\n/]*|[" WS "]*[\\r\\n]+|" TRAILING_SPACE
constexpr SplitStage kGpt4o = {GPT4O("(?:" CONTRACTIONS ")?", "\\p{N}{1,3}"), true, false};
constexpr SplitStage kTekken = {GPT4O("", "\\p{N}"), true, false};

constexpr SplitStage kDeepseek3 = {
    "[!-/:-@\\[-`{-~][A-Za-z]+|[^\\r\\n\\p{L}\\p{P}\\p{S}]?[\\p{L}\\p{M}]+| ?[\\p{P}\\p{S}]+[\\r\\n]*|"
    "[" WS "]*[\\r\\n]+|" TRAILING_SPACE,
    false, true};

// Letters of the scripts that know capitals, as DeepSeek LLM's tokenizer lists them.
#define CASED_LETTERS                                                                                            \
  "A-Za-z\\x{B5}\\x{C0}-\\x{D6}\\x{D8}-\\x{F6}\\x{F8}-\\x{1BA}\\x{1BC}-\\x{1BF}\\x{1C4}-\\x{293}"                \
  "\\x{295}-\\x{2AF}\\x{370}-\\x{373}\\x{376}\\x{377}\\x{37B}-\\x{37D}\\x{37F}\\x{386}\\x{388}-\\x{38A}\\x{38C}" \
  "\\x{38E}-\\x{3A1}\\x{3A3}-\\x{3F5}\\x{3F7}-\\x{481}\\x{48A}-\\x{52F}\\x{531}-\\x{556}\\x{10A0}-\\x{10C5}"     \
  "\\x{13A0}-\\x{13F5}\\x{13F8}-\\x{13FD}\\x{1C90}-\\x{1CBA}\\x{1CBD}-\\x{1CBF}\\x{1D00}-\\x{1D2B}"              \
  "\\x{1D6B}-\\x{1D77}\\x{1D79}-\\x{1D9A}\\x{1E00}-\\x{1F15}\\x{1F18}-\\x{1F1D}\\x{1F20}-\\x{1F45}"              \
  "\\x{1F48}-\\x{1F4D}\\x{1F50}-\\x{1F57}\\x{1F59}\\x{1F5B}\\x{1F5D}\\x{1F5F}-\\x{1F7D}\\x{1F80}-\\x{1FB4}"      \
  "\\x{1FB6}-\\x{1FBC}\\x{1FBE}\\x{1FC2}-\\x{1FC4}\\x{1FC6}-\\x{1FCC}\\x{1FD0}-\\x{1FD3}\\x{1FD6}-\\x{1FDB}"     \
  "\\x{1FE0}-\\x{1FEC}\\x{1FF2}-\\x{1FF4}\\x{1FF6}-\\x{1FFC}\\x{2102}\\x{2107}\\x{210A}-\\x{2113}\\x{2115}"      \
  "\\x{2119}-\\x{211D}\\x{2124}\\x{2126}\\x{2128}\\x{212A}-\\x{212D}\\x{212F}-\\x{2134}\\x{2139}"                \
  "\\x{213C}-\\x{213F}\\x{2145}-\\x{2149}\\x{214E}\\x{2183}\\x{2184}\\x{2C00}-\\x{2C7B}\\x{2C7E}-\\x{2CE4}"      \
  "\\x{2CEB}-\\x{2CEE}\\x{2CF2}\\x{2CF3}\\x{A640}-\\x{A66D}\\x{A680}-\\x{A69B}\\x{A722}-\\x{A76F}"               \
  "\\x{A771}-\\x{A787}\\x{A78B}-\\x{A78E}\\x{AB70}-\\x{ABBF}\\x{FB00}-\\x{FB06}\\x{FB13}-\\x{FB17}"              \
  "\\x{FF21}-\\x{FF3A}\\x{FF41}-\\x{FF5A}\\x{10400}-\\x{1044F}\\x{104B0}-\\x{104D3}\\x{104D8}-\\x{104FB}"        \
  "\\x{10C80}-\\x{10CB2}\\x{10CC0}-\\x{10CF2}\\x{118A0}-\\x{118DF}\\x{1E900}-\\x{1E943}"
// Spaces at the end of a line. The look behind keeps this linear: without it every space of a run would be a beginning.
constexpr SplitStage kLastSpaces = {"(?<![" WS "])[" WS "]++\\z", false, false};
#define CJK "[\\x{4E00}-\\x{9FA5}\\x{800}-\\x{4E00}\\x{AC00}-\\x{D7FF}]+"
#define SENTENCE_MARKS "(|.,!?\\x{2026}\\x{3002}\\x{FF0C}\\x{3001}\\x{964}\\x{6D4}\\x{60C})"

}  // namespace

const std::vector<PreTokenizerSpec>& pretokenizers() {
  static const std::vector<PreTokenizerSpec> table = {
      {.names = {"default", "gpt-2", "phi-2", "a.x-4.0", "mellum", "trillion"}, .stages = {kGpt2}},
      {.names = {"mpt", "olmo"}, .stages = {kGpt2}, .nfc = true},  // GPT-NeoX's
      {.names = {"smollm", "starcoder", "refact", "codeshell", "minerva-7b"}, .stages = {kEachDigit, kGpt2}},
      {.names = {"command-r"}, .stages = {kEachDigit, kGpt2}, .nfc = true},
      {.names = {"qwen2", "deepseek-r1-qwen", "megrez", "kormo"}, .stages = {kQwen2}, .nfc = true},
      {.names = {"qwen35"}, .stages = {kQwen35}, .nfc = true},
      {.names = {"llama-bpe", "llama3", "llama-v3", "falcon3", "falcon-h1", "midm-2.0", "pixtral", "lfm2"},
       .stages = {kLlama3},
       .whole_words = true,
       .add_bos = true},
      {.names = {"smaug-bpe", "dbrx", "glm4", "chatglm-bpe"}, .stages = {kLlama3}},
      {.names = {"gpt-4o", "llama4", "kanana2"}, .stages = {kGpt4o}},
      {.names = {"tekken"}, .stages = {kTekken}, .whole_words = true, .add_bos = true},
      {.names = {"falcon"}, .stages = {{"[\\p{P}$+<=>^~|`]+", false, false}, kGpt2, {"[0-9][0-9][0-9]", false, false}}},
      {.names = {"deepseek-coder"},
       .stages = {{"[\\r\\n]", false, false},
                  {"[" WS "]?\\p{L}+", false, true},
                  {"[" WS "]?\\p{P}+", false, false},
                  {CJK, false, false},
                  kEachDigit}},
      {.names = {"deepseek-llm"},
       .stages = {{"[\\r\\n]", false, false},
                  {"[" WS "]?[" CASED_LETTERS "]+", false, true},
                  {"[" WS "]?[!-/:-~\\x{FF01}-\\x{FF0F}\\x{FF1A}-\\x{FF5E}\\x{2018}-\\x{201F}\\x{3000}-\\x{3002}]+",
                   false, false},
                  kLastSpaces,
                  {CJK, false, false},
                  kEachDigit}},
      {.names = {"seed-coder"}, .stages = {kSeedCoder}},
      {.names = {"viking"}, .stages = {{" ?[^" WS SENTENCE_MARKS "]+", false, false}, kEachDigit}},
      {.names = {"deepseek-v3"},
       .stages = {{"\\p{N}{1,3}", false, false},
                  {"[\\x{4E00}-\\x{9FA5}\\x{3040}-\\x{309F}\\x{30A0}-\\x{30FF}]+", false, false},
                  kDeepseek3}},
  };
  return table;
}

const PreTokenizerSpec* find_pretokenizer(std::string_view name) {
  for (const PreTokenizerSpec& spec : pretokenizers())
    if (std::ranges::find(spec.names, name) != spec.names.end()) return &spec;
  return nullptr;
}

}  // namespace ellm::format
