// A line of a batch's results, as in OpenAI's batch API.
#pragma once
#include <map>
#include <string>
#include <utility>

#include "client/cli/batch_request.h"
#include "client/client.h"

namespace ellm::cli {

/// What a result says of the line that it belongs to.
struct LineName {
  std::string custom_id;  // empty: null
  uint64_t hash = 0;      // of the line; `id` is made of it
  uint64_t number = 0;    // in the input, from 1
};

/// "batch_req_" and the hash in hexadecimal.
std::string result_id(uint64_t hash);

/// The bytes of single tokens, asked of the daemon once each.
class TokenTexts {
 public:
  explicit TokenTexts(client::Client& client) : client_(client) {}
  const std::string& get(const std::string& model, uint32_t id);

 private:
  client::Client& client_;
  std::map<std::pair<std::string, uint32_t>, std::string> texts_;
};

// Each without a newline at its end.

/// An answer. Asks the daemon where log-probabilities are wanted; throws what client calls throw.
std::string answer_line(const LineName& line, const BatchRequest& request, const client::Completion& completion,
                        TokenTexts& texts);
/// The daemon refused the request: a response with a status code.
std::string refusal_line(const LineName& line, const client::ClientError& error);
/// The line is no request: no response.
std::string broken_line(const LineName& line, const LineError& error);

}  // namespace ellm::cli
