// A model file without the daemon (--model-file).
#pragma once
#include <memory>
#include <string>

#include "daemon/format/gguf.h"

namespace ellm::cli {

/// Throws Failure where the file cannot be opened (no input, no permission), FormatError where it is no good.
std::shared_ptr<const format::Gguf> open_model(const std::string& path);

}  // namespace ellm::cli
