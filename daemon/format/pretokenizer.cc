// Running the split stages with PCRE2; see pretokenizer.h.
#include "daemon/format/pretokenizer.h"

#define PCRE2_CODE_UNIT_WIDTH 8
#include <pcre2.h>

#include <cassert>
#include <cstdint>
#include <new>
#include <stdexcept>
#include <string>

#include "daemon/format/utf8.h"

namespace ellm::format {
namespace {

const pcre2_code* as_code(const void* code) { return static_cast<const pcre2_code*>(code); }

// What one call of split needs: PCRE2's match data and limits. No limit applies: our expressions backtrack over single
// characters only, so a match is linear in the length of what it looks at.
class Matcher {
 public:
  Matcher() : data_(pcre2_match_data_create(1, nullptr)), context_(pcre2_match_context_create(nullptr)) {
    if (!data_ || !context_) {
      release();
      throw std::bad_alloc();
    }
    pcre2_set_match_limit(context_, UINT32_MAX);
  }
  Matcher(const Matcher&) = delete;
  Matcher& operator=(const Matcher&) = delete;
  ~Matcher() { release(); }

  struct Range {
    size_t begin, end;
  };
  /// The first non-empty match at or after `from`; {size, size} where there is none. `text` is known to be UTF-8.
  Range find(const pcre2_code* code, bool compiled, std::string_view text, size_t from) {
    constexpr uint32_t options = PCRE2_NO_UTF_CHECK | PCRE2_NOTEMPTY;  // no others, for the JIT
    const auto* const subject = reinterpret_cast<PCRE2_SPTR>(text.data());
    int result = compiled ? pcre2_jit_match(code, subject, text.size(), from, options, data_, context_)
                          : PCRE2_ERROR_JIT_STACKLIMIT;
    if (result == PCRE2_ERROR_JIT_STACKLIMIT)
      result = pcre2_match(code, subject, text.size(), from, options | PCRE2_NO_JIT, data_, context_);
    if (result == PCRE2_ERROR_NOMATCH) return {text.size(), text.size()};
    if (result == PCRE2_ERROR_NOMEMORY || result == PCRE2_ERROR_HEAPLIMIT) throw std::bad_alloc();
    if (result < 0) throw std::runtime_error("pre-tokenizer: PCRE2 error " + std::to_string(result));
    const size_t* const ends = pcre2_get_ovector_pointer(data_);
    return {ends[0], ends[1]};
  }

 private:
  void release() {
    pcre2_match_data_free(data_);
    pcre2_match_context_free(context_);
  }
  pcre2_match_data* data_;
  pcre2_match_context* context_;
};

bool is_letter(char c) { return static_cast<unsigned char>((c | 0x20) - 'a') < 26; }

// The end of the ASCII word at `at`, or `at` where the expression has to decide.
size_t ascii_word(std::string_view text, size_t at) {
  size_t i = at + (text[at] == ' ');
  if (i == text.size() || !is_letter(text[i])) return at;
  do ++i;
  while (i < text.size() && is_letter(text[i]));
  return i == text.size() || static_cast<signed char>(text[i]) >= 0 ? i : at;
}

// Bytes that are not UTF-8 replaced one by one, so that offsets stay.
std::string with_placeholders(std::string_view text) {
  std::string out(text);
  for (size_t at = 0; (at += valid_utf8_prefix(text.substr(at))) < text.size();) {
    const uint32_t length = utf8_step(text.data() + at, text.data() + text.size()).length;
    for (uint32_t i = 0; i < length; ++i) out[at++] = '\x01';
  }
  return out;
}

}  // namespace

void PreTokenizer::FreeCode::operator()(void* code) const noexcept { pcre2_code_free(static_cast<pcre2_code*>(code)); }

PreTokenizer::PreTokenizer(const PreTokenizerSpec& spec, Engine engine) {
  for (const SplitStage& stage : spec.stages) {
    int error = 0;
    size_t offset = 0;
    const uint32_t options = PCRE2_UTF | PCRE2_UCP | (stage.covers ? PCRE2_ANCHORED : 0);
    std::unique_ptr<void, FreeCode> code(pcre2_compile(reinterpret_cast<PCRE2_SPTR>(stage.regex), PCRE2_ZERO_TERMINATED,
                                                       options, &error, &offset, nullptr));
    if (!code) throw std::logic_error("pre-tokenizer: PCRE2 error " + std::to_string(error) + " in " + stage.regex);
    const bool compiled =
        engine == Engine::fastest && pcre2_jit_compile(static_cast<pcre2_code*>(code.get()), PCRE2_JIT_COMPLETE) == 0;
    stages_.push_back({std::move(code), stage.ascii_words, compiled});
  }
}

bool PreTokenizer::compiled() const {
  for (const Stage& stage : stages_)
    if (!stage.compiled) return false;
  return true;
}

void PreTokenizer::split(std::string_view text, std::vector<uint32_t>& ends) const {
  ends.clear();
  if (text.empty()) return;
  if (text.size() > INT32_MAX)
    throw std::length_error("text of " + std::to_string(text.size()) + " bytes to tokenize, at most 2147483647");
  std::string replaced;
  if (valid_utf8_prefix(text) < text.size()) text = replaced = with_placeholders(text);
  Matcher matcher;
  ends.push_back(static_cast<uint32_t>(text.size()));
  std::vector<uint32_t> before;
  for (const Stage& stage : stages_) {
    before.swap(ends);
    ends.clear();
    size_t begin = 0;
    for (const uint32_t end : before) {
      const std::string_view piece = text.substr(begin, end - begin);
      const auto put = [&](size_t at) { ends.push_back(static_cast<uint32_t>(begin + at)); };
      for (size_t at = 0; at < piece.size();) {
        if (stage.ascii_words) {
          if (const size_t word = ascii_word(piece, at); word > at) {
            put(at = word);
            continue;
          }
        }
        const Matcher::Range match = matcher.find(as_code(stage.code.get()), stage.compiled, piece, at);
        if (match.begin > at) put(match.begin);
        if (match.end > match.begin) put(match.end);
        at = match.end;
      }
      begin = end;
    }
  }
}

}  // namespace ellm::format
