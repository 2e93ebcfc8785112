// Pre-tokenizers of byte-level BPE: cuts a text into the pieces within which merging happens, by the regular
// expressions that a model's tokenizer publishes, run by PCRE2. Its JIT is used where executable memory may be had,
// else its interpreter. Immutable after construction; any thread (each call brings its own match data).
#pragma once
#include <cstdint>
#include <memory>
#include <string_view>
#include <vector>

namespace ellm::format {

/// One split by a regular expression: matches become pieces, and so does what lies between them.
struct SplitStage {
  const char* regex;
  /// Matches at every position but the end: matched anchored, which is faster.
  bool covers;
  /// At a letter, or a space and a letter, a run of ASCII letters before another ASCII character or the end is one
  /// match.
  bool ascii_words;
};

struct PreTokenizerSpec {
  std::vector<std::string_view> names;  // values of tokenizer.ggml.pre
  std::vector<SplitStage> stages;       // each splits the pieces of the one before
  bool nfc = false;                     // the text is normalised first
  bool whole_words = false;             // a piece that is a token is that token, whatever the merges say
  bool add_bos = false;                 // where the file is silent
};

/// nullptr: not known.
const PreTokenizerSpec* find_pretokenizer(std::string_view name);
const std::vector<PreTokenizerSpec>& pretokenizers();

class PreTokenizer {
 public:
  enum class Engine { fastest, interpreter };
  explicit PreTokenizer(const PreTokenizerSpec& spec, Engine engine = Engine::fastest);

  /// True when every stage was compiled to machine code.
  bool compiled() const;

  /// Where the pieces of `text` end, ascending, the last at text.size(); linear in its length. For the expressions a
  /// byte that is not UTF-8 counts as the control character U+0001. Texts of 2^31 bytes and more are refused
  /// (std::length_error).
  void split(std::string_view text, std::vector<uint32_t>& ends) const;

 private:
  struct FreeCode {
    void operator()(void* code) const noexcept;
  };
  struct Stage {
    std::unique_ptr<void, FreeCode> code;  // pcre2_code_8
    bool ascii_words, compiled;
  };
  std::vector<Stage> stages_;
};

}  // namespace ellm::format
