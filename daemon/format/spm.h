// SentencePiece's BPE (the model "llama"): characters merge to tokens by score, what has no token falls back to bytes.
// Immutable; any thread.
#pragma once
#include <bitset>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "daemon/format/gguf.h"
#include "daemon/format/merge.h"
#include "daemon/format/vocabulary.h"

namespace ellm::format {

class Spm {
 public:
  /// `vocabulary` outlives it.
  Spm(const Gguf& file, const Vocabulary& vocabulary);

  /// The text with a space for each of SentencePiece's marks, which are spaces to it. In `memory` if there are any.
  static std::string_view without_marks(std::string_view text, std::string& memory);

  /// Appends the ids of a text without special tokens and marks, with a space before it if `space_prefix`. A byte that
  /// is not UTF-8 is a symbol of its own.
  void encode(std::string_view text, bool space_prefix, std::vector<TokenId>& out) const;

 private:
  // How the merge of an unused token came about: such tokens serve as steps and are taken apart again at the end.
  using Steps = std::unordered_map<std::string_view, size_t>;  // text -> length of its left part

  void encode_piece(std::string_view piece, MergeWorkspace& work, Steps& steps, std::vector<TokenId>& out) const;
  void put(std::string_view text, TokenId id, const Steps& steps, std::vector<TokenId>& out) const;

  const Vocabulary& vocabulary_;
  std::vector<uint32_t> ranks_;  // (vocabulary) of the scores: higher scores have lower ranks
  std::bitset<65536> joined_;    // first byte << 8 | second: stand side by side in some token
  bool has_unused_ = false;
};

}  // namespace ellm::format
