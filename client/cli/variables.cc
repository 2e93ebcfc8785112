// See variables.h.
#include "client/cli/variables.h"

#include <algorithm>
#include <boost/json/parse.hpp>
#include <boost/json/parser.hpp>
#include <boost/json/serialize.hpp>

#include "client/cli/failure.h"
#include "client/cli/output.h"

namespace ellm::cli {
namespace {

constexpr size_t kDepth = 64;  // the daemon's

}  // namespace

boost::json::object parse_variables(const std::string& text) {
  boost::json::error_code error;
  boost::json::parser parser({}, {.max_depth = kDepth});
  size_t used = parser.write_some(text, error);
  if (!error && text.find_first_not_of(" \t\r\n", used) != std::string::npos) error = boost::json::error::extra_data;
  if (error) {
    size_t line = 1 + static_cast<size_t>(std::count(
                          text.begin(), text.begin() + static_cast<ptrdiff_t>(std::min(used, text.size())), '\n'));
    throw Failure(kData, format("the variables are not JSON: %s, line %zu", error.message().c_str(), line));
  }
  boost::json::value value = parser.release();
  if (!value.is_object()) throw Failure(kData, "the variables must be one JSON object, such as {\"messages\": [...]}");
  return std::move(value.get_object());
}

VariableOptions::VariableOptions(CommandLine& line, const char* reserved) : line_(line), reserved_(reserved) {
  option_ =
      line.add_list("--template-var", given_,
                    "A variable of the chat template, such as enable_thinking=false or tools='[...]'; may be repeated")
          ->type_name("NAME=JSON");
}

boost::json::object VariableOptions::get() const {
  boost::json::object variables;
  for (const std::string& text : given_) {
    const size_t equals = text.find('=');
    if (equals == 0 || equals == std::string::npos)
      line_.usage_error("--template-var '" + text + "' is not NAME=JSON, such as enable_thinking=false");
    const std::string name = text.substr(0, equals), json = text.substr(equals + 1);
    if (reserved_ && name == reserved_) line_.usage_error("--template-var cannot set " + name + ": the prompt does");
    boost::json::error_code error;
    boost::json::value value = boost::json::parse(json, error, {}, {.max_depth = kDepth});
    if (error)
      line_.usage_error("--template-var " + name + ": '" + json +
                        "' is not JSON (a text stands in double quotes: " + name + "='\"…\"')");
    variables[name] = std::move(value);
  }
  return variables;
}

std::string VariableOptions::text() const {
  // Boost's serializer and not ours: it keeps 5.0 apart from 5.
  return given_.empty() ? "" : boost::json::serialize(get());
}

}  // namespace ellm::cli
