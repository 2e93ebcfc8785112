// Special tokens in text; see special_tokens.h. The sorted list serves as a trie: each further byte narrows a range of
// it.
#include "daemon/format/special_tokens.h"

#include <algorithm>
#include <utility>

namespace ellm::format {

SpecialTokens::SpecialTokens(const Vocabulary& vocabulary, bool user_defined_only) : vocabulary_(vocabulary) {
  for (TokenId id = 0; id < vocabulary.size(); ++id) {
    const bool wanted = user_defined_only ? vocabulary.kind(id) == TokenKind::user_defined : vocabulary.is_special(id);
    if (!wanted || vocabulary.text(id).empty()) continue;
    sorted_.push_back(id);
    may_begin_[static_cast<unsigned char>(vocabulary.text(id)[0])] = true;
  }
  // Doubles: the first in the vocabulary stays.
  std::ranges::sort(sorted_, {}, [&](TokenId id) { return std::pair(vocabulary.text(id), id); });
  const auto doubles = std::ranges::unique(sorted_, {}, [&](TokenId id) { return vocabulary.text(id); });
  sorted_.erase(doubles.begin(), doubles.end());
}

SpecialTokens::Found SpecialTokens::find(std::string_view text, size_t from) const {
  if (!sorted_.empty()) {
    for (size_t at = from; at < text.size(); ++at) {
      if (!may_begin_[static_cast<unsigned char>(text[at])]) continue;
      if (const TokenId id = match(text.substr(at)); id != kNoToken) return {at, id};
    }
  }
  return {text.size(), kNoToken};
}

TokenId SpecialTokens::match(std::string_view text) const {
  TokenId found = kNoToken;
  auto first = sorted_.begin(), last = sorted_.end();
  for (size_t depth = 0; depth < text.size() && first != last; ++depth) {
    const auto byte = static_cast<unsigned char>(text[depth]);
    // All of [first, last) share the first `depth` bytes of the text; those that end here sort first.
    const auto at_depth = [&](TokenId id) -> int {
      const std::string_view token = vocabulary_.text(id);
      return depth < token.size() ? static_cast<unsigned char>(token[depth]) : -1;
    };
    const auto range = std::ranges::equal_range(first, last, static_cast<int>(byte), {}, at_depth);
    first = range.begin(), last = range.end();
    if (first != last && vocabulary_.text(*first).size() == depth + 1) found = *first;
  }
  return found;
}

}  // namespace ellm::format
