// The tokens of a model file: their texts as bytes, kinds and special roles, and a table from text to id.
// Immutable after construction; any thread.
#pragma once
#include <array>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "daemon/format/gguf.h"
#include "daemon/format/tokenizer.h"

namespace ellm::format {

inline constexpr TokenId kNoToken = UINT32_MAX;

/// tokenizer.ggml.token_type, with its numbers.
enum class TokenKind : uint8_t { normal = 1, unknown = 2, control = 3, user_defined = 4, unused = 5, byte = 6 };

class Vocabulary {
 public:
  /// How a file writes token texts: with GPT-2's alphabet of 256 printable characters for bytes, or as plain text in
  /// which U+2581 stands for a space.
  enum class Form { byte_level, spaces };

  /// Reads tokens, types and special ids. Throws FormatError.
  Vocabulary(const Gguf& file, Form form);

  uint32_t size() const { return static_cast<uint32_t>(kinds_.size()); }
  /// The bytes that a token stands for; of control and unknown tokens their name.
  std::string_view text(TokenId id) const { return {bytes_.data() + offsets_[id], offsets_[id + 1] - offsets_[id]}; }
  TokenKind kind(TokenId id) const { return kinds_[id]; }
  /// Left out of plain text: control, unknown and unused tokens.
  bool is_silent(TokenId id) const {
    return kinds_[id] == TokenKind::control || kinds_[id] == TokenKind::unknown || kinds_[id] == TokenKind::unused;
  }
  /// Matched as a whole in text before tokenization.
  bool is_special(TokenId id) const {
    return kinds_[id] == TokenKind::control || kinds_[id] == TokenKind::unknown ||
           kinds_[id] == TokenKind::user_defined;
  }
  bool is_end(TokenId id) const;

  /// The token that merging may produce with exactly these bytes, or kNoToken. Where several have one text, the first.
  TokenId find(std::string_view text) const;
  /// find() for many texts at once, which overlaps the cache misses.
  struct Lookup {
    std::string_view text;
    TokenId id;     // the answer
    uint64_t hash;  // scratch
  };
  void find_all(std::span<Lookup> lookups) const;
  size_t longest_text() const { return longest_text_; }  // of those that find() can return
  /// The token of a single byte, or kNoToken.
  TokenId byte_token(uint8_t byte) const { return byte_tokens_[byte]; }

  std::optional<TokenId> bos() const { return bos_; }
  std::optional<TokenId> eos() const { return eos_; }
  std::optional<TokenId> unknown() const { return unknown_; }

  /// Appends the bytes that a text in this file's form stands for. False: it is not in that form (a character outside
  /// of the alphabet, a real space) and was appended as it is.
  bool append_decoded(std::string& out, std::string_view written) const;

 private:
  struct Slot {
    uint32_t hash;  // the upper half: rejects most strangers without a look at the text
    TokenId id = kNoToken;
  };
  void read_kinds(const Gguf& file, size_t count);
  void read_texts(const std::vector<std::string_view>& tokens);
  void read_special_ids(const Gguf& file);
  void collect_ends(const Gguf& file);
  void index(std::span<const TokenId> ids);
  void index(TokenId id, uint64_t hash);
  TokenId find(std::string_view text, uint64_t hash) const;

  Form form_;
  std::string bytes_;              // all texts
  std::vector<uint32_t> offsets_;  // (size + 1)
  std::vector<TokenKind> kinds_;   // (size)
  std::vector<Slot> slots_;        // open addressing, a power of two, at most two thirds full
  std::array<TokenId, 256> byte_tokens_;
  std::vector<TokenId> ends_;
  size_t longest_text_ = 0;
  std::optional<TokenId> bos_, eos_, unknown_;
};

}  // namespace ellm::format
