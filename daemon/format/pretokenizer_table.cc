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

// The family of GPT-4's: `digits` is the alternative for numbers.
#define GPT4(digits)                                                                                          \
  CONTRACTIONS "|[^\\r\\n\\p{L}\\p{N}]?\\p{L}+|" digits "| ?[^" WS "\\p{L}\\p{N}]+[\\r\\n]*|[" WS "]*[\\r\\n]+|" TRAILING_SPACE
constexpr SplitStage kQwen2 = {GPT4("\\p{N}"), true, true};
constexpr SplitStage kLlama3 = {GPT4("\\p{N}{1,3}"), true, true};

}  // namespace

const std::vector<PreTokenizerSpec>& pretokenizers() {
  static const std::vector<PreTokenizerSpec> table = {
      {.names = {"default", "gpt-2", "gpt2", "mpt", "olmo"}, .stages = {kGpt2}},
      {.names = {"smollm", "starcoder", "refact", "codeshell"}, .stages = {kEachDigit, kGpt2}},
      {.names = {"qwen2"}, .stages = {kQwen2}, .nfc = true},
      {.names = {"llama-bpe", "llama3", "llama-v3"}, .stages = {kLlama3}, .whole_words = true, .add_bos = true},
      {.names = {"falcon"},
       .stages = {{"[\\p{P}$+<=>^~|`]+", false, false}, kGpt2, {"[0-9][0-9][0-9]", false, false}}},
      {.names = {"deepseek-coder"},
       .stages = {{"[\\r\\n]", false, false},
                  {"[" WS "]?\\p{L}+", false, true},
                  {"[" WS "]?\\p{P}+", false, false},
                  {"[\\x{4E00}-\\x{9FA5}\\x{800}-\\x{4E00}\\x{AC00}-\\x{D7FF}]+", false, false},
                  kEachDigit}},
  };
  return table;
}

const PreTokenizerSpec* find_pretokenizer(std::string_view name) {
  for (const PreTokenizerSpec& spec : pretokenizers())
    if (std::ranges::find(spec.names, name) != spec.names.end()) return &spec;
  return nullptr;
}

}  // namespace ellm::format
