// Text to token ids and back, as the model file says: byte-level BPE ("gpt2" with a pre-tokenizer) and
// SentencePiece-style BPE with scores ("llama"). Immutable after make; any thread.
#pragma once
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "daemon/format/gguf.h"

namespace ellm::format {

using TokenId = uint32_t;

class Tokenizer {
 public:
  /// Reads tokenizer.ggml.* of the file. Throws FormatError (an unknown model or pre-tokenizer is named).
  static std::shared_ptr<const Tokenizer> open(const Gguf& file);

  struct EncodeOptions {
    bool add_special = true;    // BOS / EOS as the file asks for them
    bool parse_special = true;  // texts of control and user-defined tokens become those tokens
  };
  /// Any bytes: those that are not UTF-8 keep their value where the vocabulary has bytes. User-defined tokens are found
  /// in the text in any case. Texts of 2 GiB and more are refused (std::length_error).
  std::vector<TokenId> encode(std::string_view text, EncodeOptions options) const;
  std::vector<TokenId> encode(std::string_view text) const { return encode(text, EncodeOptions{}); }

  /// The bytes of a sequence. Control, unknown and unused tokens are left out unless `special`; a leading space that
  /// the tokenizer added is removed when the ids stand at the beginning of a text. Ids outside the vocabulary are
  /// ignored.
  std::string decode(std::span<const TokenId> ids, bool special = false) const;
  /// The bytes of one token as it stands inside a text (byte tokens give one byte). Control tokens give their text.
  std::string_view piece(TokenId id) const;

  uint32_t vocabulary_size() const;
  /// Left out of plain text: control, unknown and unused tokens.
  bool is_control(TokenId id) const;
  /// Ends a generation: EOS, EOT and their like.
  bool is_end(TokenId id) const;
  std::optional<TokenId> bos() const;
  std::optional<TokenId> eos() const;
  bool adds_bos() const;
  /// "bpe (qwen2)", "spm"
  const std::string& description() const;

 private:
  friend class StreamDecoder;
  struct Impl;
  explicit Tokenizer(std::shared_ptr<const Impl> impl);
  std::shared_ptr<const Impl> impl_;
};

/// Turns a stream of ids into text that never ends in half a character: push() returns what is complete so far.
class StreamDecoder {
 public:
  /// `at_start`: the first id stands at the beginning of a text (an added leading space is dropped).
  StreamDecoder(std::shared_ptr<const Tokenizer> tokenizer, bool at_start, bool special = false);
  std::string push(TokenId id);
  /// What is left: incomplete bytes become U+FFFD.
  std::string finish();

 private:
  std::shared_ptr<const Tokenizer> tokenizer_;
  std::string pending_;
  bool at_start_, special_;
};

}  // namespace ellm::format
