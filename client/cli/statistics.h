// The line of -v.
#pragma once
#include <string>

#include "client/client.h"

namespace ellm::cli {

/// "24 prompt tokens (16 cached) at 812/s, first token after 30 ms, 96 tokens at 45/s, stop"
std::string describe_statistics(const client::Completion& completion);

}  // namespace ellm::cli
