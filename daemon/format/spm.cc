// SentencePiece's BPE; see spm.h. Merging is defined over the whole text; where no token contains the two bytes of a
// border nothing can ever merge across it, so the text is cut there and frequent pieces are merged only once.
#include "daemon/format/spm.h"

#include <bit>
#include <cmath>
#include <stdexcept>

#include "daemon/format/utf8.h"

namespace ellm::format {
namespace {

// Order-reversing map of floats to integers; NaN is the worst of scores.
uint32_t rank_of(float score) {
  if (std::isnan(score)) score = -INFINITY;
  const auto bits = std::bit_cast<uint32_t>(score + 0.0f);  // -0 becomes +0
  return bits & 0x80000000u ? bits : ~bits & 0x7FFFFFFFu;
}

size_t pair_of(char first, char second) {
  return static_cast<size_t>(static_cast<unsigned char>(first)) << 8 | static_cast<unsigned char>(second);
}

bool continues_character(char c) { return (static_cast<unsigned char>(c) & 0xC0) == 0x80; }

}  // namespace

std::string_view Spm::without_marks(std::string_view text, std::string& memory) {
  constexpr std::string_view kSpaceMark = "\xE2\x96\x81";  // U+2581
  if (text.find(kSpaceMark) == text.npos) return text;
  for (size_t at; (at = text.find(kSpaceMark)) != text.npos; text.remove_prefix(at + kSpaceMark.size()))
    memory.append(text.substr(0, at)).push_back(' ');
  return memory.append(text);
}

Spm::Spm(const Gguf& file, const Vocabulary& vocabulary) : vocabulary_(vocabulary) {
  const auto scores = file.find_floats("tokenizer.ggml.scores");
  if (!scores) throw file.error("key 'tokenizer.ggml.scores' is missing");
  if (scores->size() != vocabulary.size()) {
    throw file.error("key 'tokenizer.ggml.scores': " + std::to_string(scores->size()) + " entries for " +
                     std::to_string(vocabulary.size()) + " tokens");
  }
  ranks_.reserve(scores->size());
  for (const float score : *scores) ranks_.push_back(rank_of(score));
  for (TokenId id = 0; id < vocabulary.size(); ++id) {
    const TokenKind kind = vocabulary.kind(id);
    if (kind != TokenKind::normal && kind != TokenKind::user_defined && kind != TokenKind::unused) continue;
    const std::string_view text = vocabulary.text(id);
    for (size_t i = 1; i < text.size(); ++i) joined_.set(pair_of(text[i - 1], text[i]));
    has_unused_ |= kind == TokenKind::unused;
  }
}

void Spm::encode(std::string_view text, bool space_prefix, std::vector<TokenId>& out) const {
  if (text.empty()) return;
  if (text.size() > INT32_MAX)
    throw std::length_error("text of " + std::to_string(text.size()) + " bytes to tokenize, at most 2147483647");
  std::string prefixed;
  if (space_prefix) text = prefixed.append(1, ' ').append(text);
  out.reserve(out.size() + text.size() / 3);
  PieceCache cache(text.size());
  MergeWorkspace work;
  Steps steps;
  for (size_t begin = 0, end; begin < text.size(); begin = end) {
    end = begin + 1;
    while (end < text.size() && (joined_[pair_of(text[end - 1], text[end])] || continues_character(text[end]))) ++end;
    const std::string_view piece = text.substr(begin, end - begin);
    cache.encode(piece, out, [&] { encode_piece(piece, work, steps, out); });
  }
}

void Spm::encode_piece(std::string_view piece, MergeWorkspace& work, Steps& steps, std::vector<TokenId>& out) const {
  if (piece.size() == 1) return put(piece, vocabulary_.find(piece), steps, out);
  work.symbols.clear();
  for (uint32_t at = 0; at < piece.size();) {
    const Utf8Step step = utf8_step(piece.data() + at, piece.data() + piece.size());
    const uint32_t length = step.kind == Utf8::character ? step.length : 1;
    work.symbols.push_back({at, at + length, vocabulary_.find(piece.substr(at, length))});
    at += length;
  }
  steps.clear();
  merge_symbols(work, [&](const Symbol& left, const Symbol& right) -> Merge {
    const size_t length = right.end - left.begin;
    if (length > vocabulary_.longest_text()) return {};
    const std::string_view text = piece.substr(left.begin, length);
    const TokenId id = vocabulary_.find(text);
    if (id == kNoToken) return {};
    if (has_unused_ && vocabulary_.kind(id) == TokenKind::unused) steps[text] = left.end - left.begin;
    return {ranks_[id], id};
  });
  for (const Symbol& symbol : work.symbols)
    put(piece.substr(symbol.begin, symbol.end - symbol.begin), symbol.id, steps, out);
}

void Spm::put(std::string_view text, TokenId id, const Steps& steps, std::vector<TokenId>& out) const {
  if (id != kNoToken && vocabulary_.kind(id) == TokenKind::unused) {
    if (const auto step = steps.find(text); step != steps.end()) {
      const std::string_view left = text.substr(0, step->second), right = text.substr(step->second);
      put(left, vocabulary_.find(left), steps, out);
      put(right, vocabulary_.find(right), steps, out);
      return;
    }
  }
  if (id != kNoToken) {
    out.push_back(id);
    return;
  }
  for (const char c : text) {
    const TokenId byte = vocabulary_.byte_token(static_cast<uint8_t>(c));
    if (byte != kNoToken) {
      out.push_back(byte);
    } else {  // no fallback: one unknown token for the character
      if (const auto unknown = vocabulary_.unknown()) out.push_back(*unknown);
      return;
    }
  }
}

}  // namespace ellm::format
