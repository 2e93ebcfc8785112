// A completion in sum: the line of -v, the object of --json.
#pragma once
#include <boost/json/object.hpp>
#include <string>

#include "client/client.h"

namespace ellm::cli {

/// "24 prompt tokens (16 cached) at 812/s, first token after 30 ms, 96 tokens at 45/s, stop"
std::string describe_statistics(const client::Completion& completion);

/// The object of --events.
boost::json::object piece_json(const client::Token& token);
/// The object of --json.
boost::json::object completion_json(const client::Completion& completion, bool logprobs);

}  // namespace ellm::cli
