// The pre-tokenizers that we know, one entry each. The expressions are those of the models' published tokenizer.json, with two
// differences of notation: \s is Unicode's White_Space, spelt out since PCRE2's own has U+180E too, and alternatives that
// cannot matter are left out. A new one is an entry here and a case in the test that runs its vectors.
#include <algorithm>

#include "daemon/format/pretokenizer.h"

#define WS "\\t-\\r \\x{85}\\x{A0}\\x{1680}\\x{2000}-\\x{200A}\\x{2028}\\x{2029}\\x{202F}\\x{205F}\\x{3000}"
#define TRAILING_SPACE "[" WS "]+(?![^" WS "])|[" WS "]+"
#define CONTRACTIONS "'(?i:s|t|re|ve|m|ll|d)"

namespace ellm::format {
namespace {

constexpr SplitStage kGpt2 = {
    "'(?:s|t|re|ve|m|ll|d)| ?\\p{L}+| ?\\p{N}+| ?[^" WS "\\p{L}\\p{N}]+|" TRAILING_SPACE, true, true};
constexpr SplitStage kEachDigit = {"\\p{N}", false, false};

// The family of GPT-4's: `digits` is the alternative for numbers, `mark` what counts as part of a word beside letters.
#define GPT4(mark, digits)                                                                                       \
  CONTRACTIONS "|[^\\r\\n\\p{L}\\p{N}]?[\\p{L}" mark "]+|" digits "| ?[^" WS "\\p{L}" mark "\\p{N}]+[\\r\\n]*|" \
               "[" WS "]*[\\r\\n]+|" TRAILING_SPACE
constexpr SplitStage kQwen2 = {GPT4("", "\\p{N}"), true, true};
constexpr SplitStage kQwen35 = {GPT4("\\p{M}", "\\p{N}"), true, true};
constexpr SplitStage kLlama3 = {GPT4("", "\\p{N}{1,3}"), true, true};

// The family of GPT-4o's, which cuts camelCase: a word is upper-case letters and then lower-case ones, one of both at least.
#define UPPER "[\\p{Lu}\\p{Lt}\\p{Lm}\\p{Lo}\\p{M}]"
#define LOWER "[\\p{Ll}\\p{Lm}\\p{Lo}\\p{M}]"
#define GPT4O(suffix, digits)                                                                                      \
  "[^\\r\\n\\p{L}\\p{N}]?" UPPER "*" LOWER "+" suffix "|[^\\r\\n\\p{L}\\p{N}]?" UPPER "+" LOWER "*" suffix "|" digits \
  "| ?[^" WS "\\p{L}\\p{N}]+[\\r\\n/]*|[" WS "]*[\\r\\n]+|" TRAILING_SPACE
constexpr SplitStage kGpt4o = {GPT4O("(?:" CONTRACTIONS ")?", "\\p{N}{1,3}"), true, false};
constexpr SplitStage kTekken = {GPT4O("", "\\p{N}"), true, false};

constexpr SplitStage kDeepseek3 = {
    "[!-/:-@\\[-`{-~][A-Za-z]+|[^\\r\\n\\p{L}\\p{P}\\p{S}]?[\\p{L}\\p{M}]+| ?[\\p{P}\\p{S}]+[\\r\\n]*|"
    "[" WS "]*[\\r\\n]+|" TRAILING_SPACE, false, true};

}  // namespace

const std::vector<PreTokenizerSpec>& pretokenizers() {
  static const std::vector<PreTokenizerSpec> table = {
      {.names = {"default", "gpt-2", "phi-2"}, .stages = {kGpt2}},
      {.names = {"mpt", "olmo"}, .stages = {kGpt2}, .nfc = true},   // GPT-NeoX's
      {.names = {"smollm", "starcoder", "refact", "codeshell"}, .stages = {kEachDigit, kGpt2}},
      {.names = {"command-r"}, .stages = {kEachDigit, kGpt2}, .nfc = true},
      {.names = {"qwen2", "deepseek-r1-qwen", "megrez"}, .stages = {kQwen2}, .nfc = true},
      {.names = {"qwen35"}, .stages = {kQwen35}, .nfc = true},
      {.names = {"llama-bpe", "llama3", "llama-v3", "falcon3", "pixtral", "lfm2"},
       .stages = {kLlama3}, .whole_words = true, .add_bos = true},
      {.names = {"smaug-bpe", "dbrx", "glm4", "chatglm-bpe"}, .stages = {kLlama3}},
      {.names = {"gpt-4o", "llama4", "kanana2"}, .stages = {kGpt4o}},
      {.names = {"tekken"}, .stages = {kTekken}, .whole_words = true, .add_bos = true},
      {.names = {"falcon"},
       .stages = {{"[\\p{P}$+<=>^~|`]+", false, false}, kGpt2, {"[0-9][0-9][0-9]", false, false}}},
      {.names = {"deepseek-coder"},
       .stages = {{"[\\r\\n]", false, false},
                  {"[" WS "]?\\p{L}+", false, true},
                  {"[" WS "]?\\p{P}+", false, false},
                  {"[\\x{4E00}-\\x{9FA5}\\x{800}-\\x{4E00}\\x{AC00}-\\x{D7FF}]+", false, false},
                  kEachDigit}},
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
