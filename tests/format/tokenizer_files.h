// Tokenizers for tests: published vocabularies (gzipped GGUFs of the reference data) and small ones written on the
// spot.
#pragma once
#include <cstdio>
#include <memory>
#include <stdexcept>
#include <string>
#include <vector>

#include "daemon/format/gguf.h"
#include "daemon/format/tokenizer.h"
#include "tests/support/gguf_builder.h"
#include "tests/support/temp_dir.h"
#include "tests/support/test_data.h"

namespace ellm::tests {

inline std::string gunzip(const std::string& path) {
  FILE* pipe = ::popen(("gzip -dc '" + path + "'").c_str(), "r");
  if (!pipe) throw std::runtime_error("cannot run gzip");
  std::string out;
  char buffer[1 << 16];
  for (size_t n; (n = ::fread(buffer, 1, sizeof buffer, pipe)) > 0;) out.append(buffer, n);
  if (::pclose(pipe) != 0) throw std::runtime_error("gzip -dc " + path + " failed");
  return out;
}

/// A GGUF of these bytes. The file is gone when this returns; its mapping stays.
inline std::shared_ptr<const format::Gguf> gguf_of(const std::string& bytes) {
  const TempDir dir;
  return format::Gguf::open(dir.write("model.gguf", bytes));
}
inline std::shared_ptr<const format::Gguf> vocabulary_file(const std::string& data, const std::string& name) {
  return gguf_of(gunzip(data + "/tokenizers/" + name + ".gguf.gz"));
}
inline std::shared_ptr<const format::Tokenizer> tokenizer_of(const GgufBuilder& file) {
  return format::Tokenizer::open(*gguf_of(file.bytes()));
}

/// How a byte-level vocabulary writes a byte: printable Latin-1 as it is, the others from U+0100 up.
inline std::string written_byte(int byte) {
  const auto printable = [](int b) { return (b > 32 && b < 127) || (b > 160 && b != 173); };
  int point = byte;
  if (!printable(byte)) {
    point = 256;
    for (int b = 0; b < byte; ++b) point += !printable(b);
  }
  if (point < 128) return std::string(1, static_cast<char>(point));
  return {static_cast<char>(0xC0 | point >> 6), static_cast<char>(0x80 | (point & 63))};
}

enum TokenType : int32_t { kNormal = 1, kUnknown = 2, kControl = 3, kUserDefined = 4, kUnused = 5, kByte = 6 };

/// A vocabulary under construction.
struct TestVocabulary {
  std::vector<std::string> tokens, merges;
  std::vector<int32_t> types;
  std::vector<float> scores;

  format::TokenId add(const std::string& text, int32_t type = kNormal, float score = 0) {
    tokens.push_back(text);
    types.push_back(type);
    scores.push_back(score);
    return static_cast<format::TokenId>(tokens.size() - 1);
  }

  /// All 256 bytes, id = byte.
  static TestVocabulary bytes() {
    TestVocabulary v;
    for (int b = 0; b < 256; ++b) v.add(written_byte(b));
    return v;
  }
  /// A merge and its result.
  format::TokenId merge(const std::string& left, const std::string& right) {
    merges.push_back(left + " " + right);
    return add(left + right);
  }
  GgufBuilder bpe(const std::string& pre = "gpt-2") const {
    GgufBuilder b;
    b.string("general.architecture", "llama").string("tokenizer.ggml.model", "gpt2").string("tokenizer.ggml.pre", pre);
    return b.strings("tokenizer.ggml.tokens", tokens)
        .array("tokenizer.ggml.token_type", 5, types)
        .strings("tokenizer.ggml.merges", merges);
  }

  /// <unk>, <s>, </s> and the 256 byte tokens, as Llama has them: a byte's id is byte + 3.
  static TestVocabulary pieces(bool with_bytes = true) {
    TestVocabulary v;
    v.add("<unk>", kUnknown);
    v.add("<s>", kControl);
    v.add("</s>", kControl);
    for (int b = 0; with_bytes && b < 256; ++b) {
      char text[8];
      std::snprintf(text, sizeof text, "<0x%02X>", static_cast<unsigned>(b));
      v.add(text, kByte);
    }
    return v;
  }
  GgufBuilder spm() const {
    GgufBuilder b;
    b.string("general.architecture", "llama").string("tokenizer.ggml.model", "llama");
    b.strings("tokenizer.ggml.tokens", tokens)
        .array("tokenizer.ggml.token_type", 5, types)
        .array("tokenizer.ggml.scores", 6, scores);
    return b.u32("tokenizer.ggml.bos_token_id", 1)
        .u32("tokenizer.ggml.eos_token_id", 2)
        .u32("tokenizer.ggml.unknown_token_id", 0);
  }
};

inline constexpr format::Tokenizer::EncodeOptions kPlain{.add_special = false, .parse_special = false};

}  // namespace ellm::tests
