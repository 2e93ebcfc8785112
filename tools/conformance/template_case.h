// The cases of expected.json, which holds conversations and what published templates make of them.
#pragma once
#include <boost/json.hpp>
#include <string_view>

namespace ellm::conformance {

/// The variables of a case such as "tools+gen".
inline boost::json::object variables_of(const boost::json::object& expected, std::string_view which) {
  boost::json::object variables;
  const bool generate = which.ends_with("+gen");
  if (generate) which.remove_suffix(4);
  variables["messages"] = expected.at("conversations").at(which);
  variables["add_generation_prompt"] = generate;
  variables["bos_token"] = "<s>";
  variables["eos_token"] = "</s>";
  variables["now"] = "2024-07-26";
  if (which == "tools") variables["tools"] = expected.at("tools");
  return variables;
}

}  // namespace ellm::conformance
