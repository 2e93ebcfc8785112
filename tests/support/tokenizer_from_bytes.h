// Any bytes as a vocabulary and a text: what the fuzz target and the bounded random test of the tokenizers run.
#pragma once
#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <string>
#include <string_view>
#include <vector>

#include "daemon/format/gguf.h"
#include "daemon/format/tokenizer.h"
#include "daemon/format/utf8.h"
#include "tests/support/gguf_builder.h"
#include "tests/support/memory_file.h"

namespace ellm::tests {

/// Reads values off the front of some bytes; zeros where they have run out.
class ByteSource {
 public:
  explicit ByteSource(std::string_view bytes) : bytes_(bytes) {}
  uint8_t byte() {
    if (bytes_.empty()) return 0;
    const auto value = static_cast<uint8_t>(bytes_[0]);
    bytes_.remove_prefix(1);
    return value;
  }
  std::string text(size_t most) {
    std::string out(bytes_.substr(0, most ? byte() % (most + 1) : 0));
    bytes_.remove_prefix(std::min(out.size(), bytes_.size()));
    return out;
  }
  std::string_view rest() const { return bytes_; }

 private:
  std::string_view bytes_;
};

/// Opens a tokenizer that the bytes describe and sends what is left of them through it. True if it opened; aborts where
/// a property fails.
inline bool tokenizer_from_bytes(std::string_view bytes) {
  static const char* const pre[] = {"gpt-2",  "qwen2",  "smollm",      "llama-bpe",
                                    "gpt-4o", "falcon", "deepseek-v3", "nosuch"};
  ByteSource source(bytes);
  const bool spm = source.byte() & 1;
  GgufBuilder file;
  file.string("general.architecture", "llama").string("tokenizer.ggml.model", spm ? "llama" : "gpt2");
  file.string("tokenizer.ggml.pre", pre[source.byte() % std::size(pre)]);
  std::vector<std::string> tokens, merges;
  std::vector<int32_t> types;
  std::vector<float> scores;
  const size_t count = source.byte() % 40;
  for (size_t i = 0; i < count; ++i) {
    tokens.push_back(source.text(8));
    types.push_back(static_cast<int8_t>(source.byte()) % 9);
    float score = 0;
    const uint32_t bits = static_cast<uint32_t>(source.byte()) << 24 | static_cast<uint32_t>(source.byte()) << 16;
    std::memcpy(&score, &bits, sizeof score);  // NaN and infinities too
    scores.push_back(score);
  }
  for (size_t n = source.byte() % 20; n > 0; --n) merges.push_back(source.text(8));
  if (source.byte() % 16 == 0) types.resize(types.size() / 2);
  file.strings("tokenizer.ggml.tokens", tokens).strings("tokenizer.ggml.merges", merges);
  file.array("tokenizer.ggml.token_type", 5, types).array("tokenizer.ggml.scores", 6, scores);
  file.u32("tokenizer.ggml.bos_token_id", source.byte()).u32("tokenizer.ggml.eos_token_id", source.byte());

  static MemoryFile memory;
  const std::string image = file.bytes();
  memory.fill(image, image.size());
  std::shared_ptr<const format::Tokenizer> tokenizer;
  try {
    tokenizer = format::Tokenizer::open(*format::Gguf::open(memory.path()));
  } catch (const format::FormatError&) {
    return false;
  }
  const std::string_view text = source.rest();
  for (const bool special : {false, true}) {
    const auto ids = tokenizer->encode(text, {.add_special = special, .parse_special = special});
    if (ids.size() > 3 * text.size() + 3) std::abort();  // normalisation may lengthen a text
    for (const format::TokenId id : ids)
      if (id >= tokenizer->vocabulary_size()) std::abort();
    format::StreamDecoder decoder(tokenizer, true, special);
    std::string streamed;
    for (const format::TokenId id : ids) streamed += decoder.push(id);
    streamed += decoder.finish();
    if (streamed != format::replace_invalid_utf8(tokenizer->decode(ids, special))) std::abort();
  }
  return true;
}

}  // namespace ellm::tests
