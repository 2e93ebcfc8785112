// Finds the texts of special tokens in a text: leftmost, of those at one place the longest. Immutable; any thread.
#pragma once
#include <array>
#include <string_view>
#include <vector>

#include "daemon/format/vocabulary.h"

namespace ellm::format {

class SpecialTokens {
 public:
  /// All special tokens, or only the user-defined ones. `vocabulary` outlives it.
  SpecialTokens(const Vocabulary& vocabulary, bool user_defined_only);

  struct Found {
    size_t at;
    TokenId id;  // kNoToken: none, at = text.size()
  };
  Found find(std::string_view text, size_t from) const;

 private:
  TokenId match(std::string_view text) const;  // at its beginning

  const Vocabulary& vocabulary_;
  std::vector<TokenId> sorted_;        // by text
  std::array<bool, 256> may_begin_{};  // some text begins with this byte
};

}  // namespace ellm::format
