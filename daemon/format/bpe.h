// Byte-level BPE (the model "gpt2"): pre-tokenize, then merge bytes by the file's list of merges. Immutable; any
// thread.
#pragma once
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "daemon/format/gguf.h"
#include "daemon/format/merge.h"
#include "daemon/format/pretokenizer.h"
#include "daemon/format/vocabulary.h"

namespace ellm::format {

/// The merges as a table from a pair of ids to the result.
class MergeTable {
 public:
  MergeTable(const Gguf& file, const Vocabulary& vocabulary);
  Merge find(TokenId left, TokenId right) const {
    const uint64_t key = key_of(left, right);
    for (size_t i = slot_of(key);; i = (i + 1) & (slots_.size() - 1)) {
      if (slots_[i].key == key) return slots_[i].merge;
      if (slots_[i].merge.id == kNoToken) return {};
    }
  }

 private:
  struct Slot {
    uint64_t key = UINT64_MAX;
    Merge merge;
  };
  static uint64_t key_of(TokenId left, TokenId right) { return static_cast<uint64_t>(left) << 32 | right; }
  size_t slot_of(uint64_t key) const { return mix(key, 0x9E3779B97F4A7C15) & (slots_.size() - 1); }
  void add_block(std::span<const std::string_view> merges, uint32_t first_rank, const Vocabulary& vocabulary);
  void insert(TokenId left, TokenId right, Merge merge);

  std::vector<Slot> slots_;  // open addressing, a power of two, never full
};

class Bpe {
 public:
  /// `spec` and `vocabulary` outlive it.
  Bpe(const Gguf& file, const Vocabulary& vocabulary, const PreTokenizerSpec& spec,
      PreTokenizer::Engine engine = PreTokenizer::Engine::fastest);

  /// Appends the ids of a text without special tokens. Bytes that have no token are left out.
  void encode(std::string_view text, std::vector<TokenId>& out) const;

  const PreTokenizer& pretokenizer() const { return pretokenizer_; }

 private:
  void encode_piece(std::string_view piece, MergeWorkspace& work, std::vector<TokenId>& out) const;

  const Vocabulary& vocabulary_;
  const PreTokenizerSpec& spec_;
  PreTokenizer pretokenizer_;
  MergeTable merges_;
};

}  // namespace ellm::format
