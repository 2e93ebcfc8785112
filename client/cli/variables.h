// Template variables from the command line: JSON text and --template-var NAME=JSON.
#pragma once
#include <boost/json/object.hpp>
#include <string>
#include <vector>

#include "client/cli/command_line.h"

namespace ellm::cli {

/// A JSON object. Throws Failure that names the line of what is no JSON.
boost::json::object parse_variables(const std::string& text);

/// --template-var, may be repeated.
class VariableOptions {
 public:
  /// `reserved`: a name that the command sets itself, or null.
  VariableOptions(CommandLine& line, const char* reserved);
  CLI::Option* option() const { return option_; }
  /// After parsing. Throws Failure (usage) on what is not NAME=JSON; the last of a name counts.
  boost::json::object get() const;
  /// The same as JSON text for the daemon; empty where there are none.
  std::string text() const;

 private:
  CommandLine& line_;
  const char* reserved_;
  CLI::Option* option_;
  std::vector<std::string> given_;
};

}  // namespace ellm::cli
