// A line of a batch, as in OpenAI's batch API, and the request for the daemon that it makes. Pure.
#pragma once
#include <boost/json/value.hpp>
#include <stdexcept>
#include <string>
#include <string_view>
#include <variant>

#include "client/messages.h"

namespace ellm::cli {

/// What is wrong with a line; the others run. `code` as a program reads it.
class LineError : public std::runtime_error {
 public:
  LineError(const char* code, const std::string& message) : std::runtime_error(message), code_(code) {}
  const char* code() const { return code_; }

 private:
  const char* code_;
};

using BatchRequest = std::variant<client::Generate, client::Chat>;

/// A line's JSON. Throws LineError where it is none.
boost::json::value parse_line(std::string_view text);

/// The custom_id of a line; empty where there is none (it need not be an object at all).
std::string custom_id_of(const boost::json::value& line);

/// The request of a line; `model` where its body names none. Throws LineError that names the member.
BatchRequest parse_request(const boost::json::value& line, const std::string& model);

/// Lexicographic by what the prompt begins with: neighbours share the longest prefixes.
bool begins_before(const BatchRequest& a, const BatchRequest& b);

/// A piece of a text for a message: at most 80 bytes of it, in quotes.
std::string quoted(std::string_view text);

}  // namespace ellm::cli
