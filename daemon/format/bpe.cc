// Byte-level BPE; see bpe.h. Merges whose parts or result are no tokens can never be seen and are passed over.
#include "daemon/format/bpe.h"

#include <bit>

#include "daemon/format/normalize.h"

namespace ellm::format {

MergeTable::MergeTable(const Gguf& file, const Vocabulary& vocabulary) {
  const auto* written = file.find_strings("tokenizer.ggml.merges");
  if (!written) throw file.error("key 'tokenizer.ggml.merges' is missing");
  if (written->size() >= kNoMerge) throw file.error("key 'tokenizer.ggml.merges': too many merges");
  slots_.resize(std::bit_ceil(written->size() + written->size() / 2 + 2));
  std::string text;   // of left and right, then joined
  TokenId guess = 0;
  for (uint32_t rank = 0; rank < written->size(); ++rank) {
    const std::string_view merge = (*written)[rank];
    const size_t space = merge.find(' ', 1);
    if (space == merge.npos) continue;
    text.clear();
    vocabulary.append_decoded(text, merge.substr(0, space));
    const size_t middle = text.size();
    vocabulary.append_decoded(text, merge.substr(space + 1));
    const std::string_view joined = text;
    // Most vocabularies list the results in the order of the merges.
    const bool guessed = guess < vocabulary.size() && vocabulary.text(guess) == joined && vocabulary.kind(guess) == TokenKind::normal;
    const TokenId id = guessed ? guess : vocabulary.find(joined);
    if (id == kNoToken) continue;
    guess = id + 1;
    const TokenId left = vocabulary.find(joined.substr(0, middle)), right = vocabulary.find(joined.substr(middle));
    if (left != kNoToken && right != kNoToken) insert(left, right, {rank, id});
  }
}

void MergeTable::insert(TokenId left, TokenId right, Merge merge) {
  const uint64_t key = key_of(left, right);
  for (size_t i = slot_of(key);; i = (i + 1) & (slots_.size() - 1)) {
    if (slots_[i].merge.id == kNoToken) {
      slots_[i] = {key, merge};
      return;
    }
    if (slots_[i].key == key) return;   // a double: the first has the lower rank
  }
}

Bpe::Bpe(const Gguf& file, const Vocabulary& vocabulary, const PreTokenizerSpec& spec, PreTokenizer::Engine engine)
    : vocabulary_(vocabulary), spec_(spec), pretokenizer_(spec, engine), merges_(file, vocabulary) {}

void Bpe::encode(std::string_view text, std::vector<TokenId>& out) const {
  std::string normalised;
  if (spec_.nfc && !is_surely_nfc(text)) text = normalised = to_nfc(text);
  std::vector<uint32_t> ends;
  pretokenizer_.split(text, ends);
  out.reserve(out.size() + ends.size() + ends.size() / 4);
  PieceCache cache(text.size());
  MergeWorkspace work;
  size_t begin = 0;
  for (const uint32_t end : ends) {
    const std::string_view piece = text.substr(begin, end - begin);
    cache.encode(piece, out, [&] { encode_piece(piece, work, out); });
    begin = end;
  }
}

void Bpe::encode_piece(std::string_view piece, MergeWorkspace& work, std::vector<TokenId>& out) const {
  if (spec_.whole_words) {
    if (const TokenId id = vocabulary_.find(piece); id != kNoToken) {
      out.push_back(id);
      return;
    }
  }
  work.symbols.clear();
  for (uint32_t i = 0; i < piece.size(); ++i) {
    const TokenId id = vocabulary_.byte_token(static_cast<uint8_t>(piece[i]));
    if (id != kNoToken) work.symbols.push_back({i, i + 1, id});
  }
  merge_symbols(work, [&](const Symbol& left, const Symbol& right) { return merges_.find(left.id, right.id); });
  for (const Symbol& symbol : work.symbols) out.push_back(symbol.id);
}

}  // namespace ellm::format
