// The tables that several commands print.
#pragma once
#include <string>
#include <vector>

#include "client/messages.h"

namespace ellm::cli {

/// An empty cell.
std::string or_dash(const std::string& text);

/// Loaded models with their memory and KV.
std::string loaded_table(const std::vector<client::ModelInfo>& models);
/// Requests that run or wait.
std::string requests_table(const std::vector<client::RequestInfo>& requests);

}  // namespace ellm::cli
