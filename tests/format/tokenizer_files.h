// Tokenizers for tests: published vocabularies (gzipped GGUFs of the reference data) and small ones written on the spot.
#pragma once
#include <cstdio>
#include <memory>
#include <stdexcept>
#include <string>

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

inline constexpr format::Tokenizer::EncodeOptions kPlain{.add_special = false, .parse_special = false};

}  // namespace ellm::tests
