// Byte-level BPE; see bpe.h. Merges whose parts or result are no tokens can never be seen and are passed over.
#include "daemon/format/bpe.h"

#include <algorithm>
#include <array>
#include <bit>

#include "daemon/format/normalize.h"

namespace ellm::format {
namespace {

constexpr size_t kBlock = 64;  // merges that are looked up at once

}  // namespace

MergeTable::MergeTable(const Gguf& file, const Vocabulary& vocabulary) {
  const auto* written = file.find_strings("tokenizer.ggml.merges");
  if (!written) throw file.error("key 'tokenizer.ggml.merges' is missing");
  if (written->size() >= kNoMerge) throw file.error("key 'tokenizer.ggml.merges': too many merges");
  slots_.resize(std::bit_ceil(written->size() + written->size() / 2 + 2));
  for (size_t begin = 0; begin < written->size(); begin += kBlock) {
    const size_t n = std::min(kBlock, written->size() - begin);
    add_block({written->data() + begin, n}, static_cast<uint32_t>(begin), vocabulary);
  }
}

void MergeTable::add_block(std::span<const std::string_view> merges, uint32_t first_rank,
                           const Vocabulary& vocabulary) {
  std::array<Vocabulary::Lookup, 3 * kBlock> lookups;  // left, right, joined
  std::array<uint32_t, kBlock> ranks;
  std::array<size_t, 2 * kBlock> ends;  // of left and right in texts
  std::string texts;
  size_t n = 0;
  for (uint32_t i = 0; i < merges.size(); ++i) {
    const size_t space = merges[i].find(' ', 1);
    if (space == std::string_view::npos) continue;
    const size_t start = texts.size();
    const bool left = vocabulary.append_decoded(texts, merges[i].substr(0, space));
    ends[2 * n] = texts.size();
    const bool right = vocabulary.append_decoded(texts, merges[i].substr(space + 1));
    if (!left || !right) {
      texts.resize(start);
      continue;
    }
    ends[2 * n + 1] = texts.size();
    ranks[n++] = first_rank + i;
  }
  size_t begin = 0;
  for (size_t i = 0; i < n; ++i) {
    const std::string_view joined = std::string_view(texts).substr(begin, ends[2 * i + 1] - begin);
    const size_t middle = ends[2 * i] - begin;
    lookups[3 * i].text = joined.substr(0, middle);
    lookups[3 * i + 1].text = joined.substr(middle);
    lookups[3 * i + 2].text = joined;
    begin = ends[2 * i + 1];
  }
  vocabulary.find_all(std::span(lookups).first(3 * n));
  for (size_t i = 0; i < n; ++i) __builtin_prefetch(&slots_[slot_of(key_of(lookups[3 * i].id, lookups[3 * i + 1].id))]);
  for (size_t i = 0; i < n; ++i) {
    const TokenId left = lookups[3 * i].id, right = lookups[3 * i + 1].id, joined = lookups[3 * i + 2].id;
    if (left != kNoToken && right != kNoToken && joined != kNoToken) insert(left, right, {ranks[i], joined});
  }
}

void MergeTable::insert(TokenId left, TokenId right, Merge merge) {
  const uint64_t key = key_of(left, right);
  for (size_t i = slot_of(key);; i = (i + 1) & (slots_.size() - 1)) {
    if (slots_[i].merge.id == kNoToken) {
      slots_[i] = {key, merge};
      return;
    }
    if (slots_[i].key == key) return;  // a double: the first has the lower rank
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
