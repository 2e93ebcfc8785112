// Reading a vocabulary; see vocabulary.h. What a file may get wrong is either an error that names the key (arrays of
// another length or type) or harmless: double texts (the first wins), empty texts, byte tokens that are none, ids out
// of range.
#include "daemon/format/vocabulary.h"

#include <algorithm>
#include <bit>
#include <cstring>

#include "daemon/format/text_hash.h"

namespace ellm::format {
namespace {

constexpr std::string_view kSpaceMark = "\xE2\x96\x81";  // U+2581

// Tokens that end a turn whatever the metadata says, if the file marks them as control or user-defined.
constexpr std::string_view kEndTexts[] = {"<|eot_id|>",
                                          "<|im_end|>",
                                          "<|end|>",
                                          "<|return|>",
                                          "<|call|>",
                                          "<|calls|>",
                                          "<|flush|>",
                                          "<end_of_turn>",
                                          "<turn|>",
                                          "<|endoftext|>",
                                          "<|end_of_text|>",
                                          "</s>",
                                          "<eos>",
                                          "[EOS]",
                                          "<|eom_id|>",
                                          "<EOT>",
                                          "_<EOT>",
                                          "<|EOT|>",
                                          "[EOT]",
                                          "<end_of_utterance>",
                                          "<|endofturn|>",
                                          "<|END_OF_TURN_TOKEN|>",
                                          "[e~[",
                                          "<\xEF\xBD\x9C"
                                          "end\xE2\x96\x81of\xE2\x96\x81sentence\xEF\xBD\x9C>"};

// GPT-2's alphabet: printable Latin-1 characters stand for themselves, the other 68 bytes for U+0100 and up, in order.
struct ByteAlphabet {
  std::array<int16_t, 0x144> byte_of;  // code point -> byte, -1: not in the alphabet
  constexpr ByteAlphabet() : byte_of{} {
    byte_of.fill(-1);
    int next = 0x100;
    for (int b = 0; b < 256; ++b) {
      const bool printable = (b >= 0x21 && b <= 0x7E) || (b >= 0xA1 && b <= 0xAC) || b >= 0xAE;
      byte_of[static_cast<size_t>(printable ? b : next++)] = static_cast<int16_t>(b);
    }
  }
};
constexpr ByteAlphabet kAlphabet;

// UTF-8 of one or two bytes, which is all that the alphabet takes (utf8.h reads any): a start decodes every token.
bool append_byte_level(std::string& out, std::string_view written) {
  const size_t start = out.size();
  out.append(written);  // and decoded in its place: a character is one byte or two
  char* to = out.data() + start;
  for (size_t i = 0; i < written.size();) {
    uint32_t c = static_cast<unsigned char>(written[i++]);
    if (c >= 0x80) {
      const uint32_t next = i < written.size() ? static_cast<unsigned char>(written[i++]) : 0;
      c = c >= 0xC2 && c < 0xE0 && next >> 6 == 2 ? (c & 0x1F) << 6 | (next & 0x3F) : 0xFFFF;
    }
    if (c >= kAlphabet.byte_of.size() || kAlphabet.byte_of[c] < 0) {  // not byte-level at all: it stands for itself
      std::memcpy(out.data() + start, written.data(), written.size());
      return false;
    }
    *to++ = static_cast<char>(kAlphabet.byte_of[c]);
  }
  out.resize(static_cast<size_t>(to - out.data()));
  return true;
}

bool append_spaces(std::string& out, std::string_view written) {
  const bool in_form = written.find(' ') == written.npos;
  for (size_t at; (at = written.find(kSpaceMark)) != written.npos; written.remove_prefix(at + kSpaceMark.size())) {
    out.append(written.substr(0, at));
    out.push_back(' ');
  }
  out.append(written);
  return in_form;
}

// "<0x41>" -> 0x41; anything else is not a byte token.
std::optional<uint8_t> parse_byte_text(std::string_view text) {
  if (text.size() != 6 || !text.starts_with("<0x") || text[5] != '>') return std::nullopt;
  int value = 0;
  for (const char c : text.substr(3, 2)) {
    const int digit = c >= '0' && c <= '9'   ? c - '0'
                      : c >= 'A' && c <= 'F' ? c - 'A' + 10
                      : c >= 'a' && c <= 'f' ? c - 'a' + 10
                                             : -1;
    if (digit < 0) return std::nullopt;
    value = value * 16 + digit;
  }
  return static_cast<uint8_t>(value);
}

// A special id; one out of range (many files write 0xFFFFFFFF or -1 for "none") is no id.
std::optional<TokenId> read_id(const Gguf& file, std::string_view key, uint32_t size) {
  const Value* value = file.find(key);
  if (!value) return std::nullopt;
  const ValueType type = value->type;
  const bool is_signed =
      type == ValueType::i8 || type == ValueType::i16 || type == ValueType::i32 || type == ValueType::i64;
  if (is_signed && !value->bytes.empty() && (value->bytes.back() & std::byte{0x80}) != std::byte{0})
    return std::nullopt;
  const uint64_t id = file.find_uint(key).value();
  return id < size ? std::optional(static_cast<TokenId>(id)) : std::nullopt;
}

}  // namespace

Vocabulary::Vocabulary(const Gguf& file, Form form) : form_(form) {
  const auto* tokens = file.find_strings("tokenizer.ggml.tokens");
  if (!tokens) throw file.error("key 'tokenizer.ggml.tokens' is missing");
  if (tokens->empty()) throw file.error("key 'tokenizer.ggml.tokens': the vocabulary is empty");
  if (tokens->size() > INT32_MAX)
    throw file.error("key 'tokenizer.ggml.tokens': " + std::to_string(tokens->size()) +
                     " tokens are more than 2147483647");
  uint64_t bytes = 0;
  for (const std::string_view token : *tokens) bytes += token.size();
  if (bytes > UINT32_MAX) throw file.error("key 'tokenizer.ggml.tokens': the texts have more than 4 GiB");
  bytes_.reserve(bytes);
  read_kinds(file, tokens->size());
  read_texts(*tokens);
  read_special_ids(file);
  collect_ends(file);
}

void Vocabulary::read_kinds(const Gguf& file, size_t count) {
  kinds_.assign(count, TokenKind::normal);
  const auto types = file.find_ints("tokenizer.ggml.token_type");
  if (!types) return;
  if (types->size() != count) {
    throw file.error("key 'tokenizer.ggml.token_type': " + std::to_string(types->size()) + " entries for " +
                     std::to_string(count) + " tokens");
  }
  for (size_t i = 0; i < count; ++i) {
    const int64_t type = (*types)[i];
    if (type >= 1 && type <= 6) kinds_[i] = static_cast<TokenKind>(type);  // unheard-of types count as normal
  }
}

void Vocabulary::read_texts(const std::vector<std::string_view>& tokens) {
  slots_.resize(std::bit_ceil(tokens.size() + tokens.size() / 2 + 2));
  offsets_.reserve(tokens.size() + 1);
  offsets_.push_back(0);
  byte_tokens_.fill(kNoToken);
  std::vector<TokenId> indexed;
  indexed.reserve(tokens.size());
  for (TokenId id = 0; id < tokens.size(); ++id) {
    const std::string_view written = tokens[id];
    TokenKind& kind = kinds_[id];
    const auto byte = kind == TokenKind::byte ? parse_byte_text(written) : std::nullopt;
    if (kind == TokenKind::byte && !byte) kind = TokenKind::normal;
    const bool user_defined =
        kind == TokenKind::user_defined && form_ == Form::spaces;  // SentencePiece merges them, too
    bool mergeable = user_defined;
    if (byte) {
      bytes_.push_back(static_cast<char>(*byte));
      if (byte_tokens_[*byte] == kNoToken) byte_tokens_[*byte] = id;
    } else if (kind == TokenKind::normal || kind == TokenKind::unused || user_defined) {
      mergeable |= append_decoded(bytes_, written);  // one in another form can never arise from text
    } else {
      bytes_.append(written);
    }
    offsets_.push_back(static_cast<uint32_t>(bytes_.size()));
    if (mergeable && !text(id).empty()) indexed.push_back(id);
  }
  index(indexed);
  if (form_ == Form::byte_level) {
    for (int b = 0; b < 256; ++b) {
      const char byte = static_cast<char>(b);
      if (const TokenId id = find({&byte, 1}); id != kNoToken) byte_tokens_[static_cast<size_t>(b)] = id;
    }
  }
}

void Vocabulary::read_special_ids(const Gguf& file) {
  bos_ = read_id(file, "tokenizer.ggml.bos_token_id", size());
  eos_ = read_id(file, "tokenizer.ggml.eos_token_id", size());
  unknown_ = read_id(file, "tokenizer.ggml.unknown_token_id", size());
  if (form_ == Form::byte_level) return;
  // SentencePiece's standing order, where the file is silent and the tokens are what it says.
  const auto fallback = [&](std::optional<TokenId>& id, TokenId usual, TokenKind kind) {
    if (!id && usual < size() && kinds_[usual] == kind) id = usual;
  };
  fallback(unknown_, 0, TokenKind::unknown);
  fallback(bos_, 1, TokenKind::control);
  fallback(eos_, 2, TokenKind::control);
}

void Vocabulary::collect_ends(const Gguf& file) {
  if (eos_) ends_.push_back(*eos_);
  for (const auto key : {"tokenizer.ggml.eot_token_id", "tokenizer.ggml.eom_token_id"})
    if (const auto id = read_id(file, key, size())) ends_.push_back(*id);
  std::optional<TokenId> message_end;  // "<|end|>"
  bool returns = false, calls = false, flushes = false;
  for (TokenId id = 0; id < size(); ++id) {
    if (kinds_[id] != TokenKind::control && kinds_[id] != TokenKind::user_defined) continue;
    const std::string_view name = text(id);
    if (std::ranges::find(kEndTexts, name) == std::end(kEndTexts)) continue;
    ends_.push_back(id);
    returns |= name == "<|return|>";
    calls |= name == "<|call|>" || name == "<|calls|>";
    flushes |= name == "<|flush|>";
    if (name == "<|end|>") message_end = id;
  }
  // Where calls and the end of the whole turn have tokens of their own, "<|end|>" only closes one of its messages.
  if (message_end && calls && (returns || flushes) && message_end != eos_) std::erase(ends_, *message_end);
}

bool Vocabulary::is_end(TokenId id) const { return std::ranges::find(ends_, id) != ends_.end(); }

bool Vocabulary::append_decoded(std::string& out, std::string_view written) const {
  return form_ == Form::byte_level ? append_byte_level(out, written) : append_spaces(out, written);
}

/// In order: of a double the first wins.
void Vocabulary::index(std::span<const TokenId> ids) {
  std::array<uint64_t, 64> hashes;  // of tokens whose slots are fetched at once
  while (!ids.empty()) {
    const std::span<const TokenId> block = ids.first(std::min(ids.size(), hashes.size()));
    for (size_t i = 0; i < block.size(); ++i) {
      hashes[i] = text_hash(text(block[i]));
      __builtin_prefetch(&slots_[hashes[i] & (slots_.size() - 1)], 1);
    }
    for (size_t i = 0; i < block.size(); ++i) index(block[i], hashes[i]);
    ids = ids.subspan(block.size());
  }
}

void Vocabulary::index(TokenId id, uint64_t hash) {
  const std::string_view key = text(id);
  const auto tag = static_cast<uint32_t>(hash >> 32);
  for (size_t i = hash & (slots_.size() - 1);; i = (i + 1) & (slots_.size() - 1)) {
    Slot& slot = slots_[i];
    if (slot.id == kNoToken) {
      slot = {tag, id};
      longest_text_ = std::max(longest_text_, key.size());
      return;
    }
    if (slot.hash == tag && text(slot.id) == key) return;
  }
}

TokenId Vocabulary::find(std::string_view key) const { return find(key, text_hash(key)); }

TokenId Vocabulary::find(std::string_view key, uint64_t hash) const {
  const auto tag = static_cast<uint32_t>(hash >> 32);
  for (size_t i = hash & (slots_.size() - 1);; i = (i + 1) & (slots_.size() - 1)) {
    const Slot& slot = slots_[i];
    if (slot.id == kNoToken) return kNoToken;
    if (slot.hash == tag && text(slot.id) == key) return slot.id;
  }
}

void Vocabulary::find_all(std::span<Lookup> lookups) const {
  // A lookup touches a slot, an offset and a text, each in memory that the one before points to.
  for (Lookup& lookup : lookups) {
    lookup.hash = text_hash(lookup.text);
    __builtin_prefetch(&slots_[lookup.hash & (slots_.size() - 1)]);
  }
  for (Lookup& lookup : lookups) {
    lookup.id = slots_[lookup.hash & (slots_.size() - 1)].id;
    if (lookup.id != kNoToken) __builtin_prefetch(&offsets_[lookup.id]);
  }
  for (const Lookup& lookup : lookups)
    if (lookup.id != kNoToken) __builtin_prefetch(bytes_.data() + offsets_[lookup.id]);
  for (Lookup& lookup : lookups) lookup.id = find(lookup.text, lookup.hash);
}

}  // namespace ellm::format
