// What loading a file would take, and why it would fail: the answers of Model::load without reading a weight. Pure
// functions of an open file; any thread.
#pragma once
#include <cstdint>
#include <string>
#include <vector>

#include "daemon/format/gguf.h"

namespace ellm::model {

/// Bytes of memory that the weight matrices take as the kernels read them; those of a type that the kernels lack are
/// counted as they stand in the file.
uint64_t repacked_bytes(const format::Gguf& file);

/// Everything about the file that this build cannot serve, a line each that names it: architecture, weight types,
/// tokenizer, chat template, and what else read_config() refuses. Empty: it loads, if the memory is there. A chat
/// template that does not parse leaves plain completions.
std::vector<std::string> find_unsupported(const format::Gguf& file);

}  // namespace ellm::model
