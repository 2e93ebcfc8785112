// See describe.h.
#include "client/describe/describe.h"

#include <CLI/CLI.hpp>
#include <boost/json/serialize.hpp>
#include <cstdio>
#include <string_view>

namespace ellm::describe {
namespace {

namespace json = boost::json;

bool is_repeatable(const CLI::Option& option) { return option.get_items_expected_max() > 1; }

json::object describe_option(const CLI::Option& option) {
  json::array names;
  for (const std::string& name : option.get_snames()) names.emplace_back("-" + name);
  for (const std::string& name : option.get_lnames()) names.emplace_back("--" + name);
  return {{"names", std::move(names)},
          {"value", option.get_type_size() == 0 ? std::string() : option.get_type_name()},
          {"help", option.get_description()},
          {"default", option.get_default_str()},
          {"group", option.get_group()},
          {"repeatable", is_repeatable(option)}};
}

json::object describe_argument(const CLI::Option& option) {
  return {{"name", option.get_name(true)},
          {"help", option.get_description()},
          {"required", option.get_required()},
          {"repeatable", is_repeatable(option)}};
}

}  // namespace

json::object describe(const CLI::App& app) {
  json::array options, arguments;
  for (const CLI::Option* option : app.get_options()) {
    if (option->get_group().empty()) continue;  // hidden
    if (option->get_positional()) arguments.push_back(describe_argument(*option));
    else options.push_back(describe_option(*option));
  }
  return {{"name", app.get_name()},
          {"description", app.get_description()},
          {"footer", app.get_footer()},
          {"options", std::move(options)},
          {"arguments", std::move(arguments)}};
}

bool describe_if_asked(const CLI::App& app, int argc, char** argv) {
  if (argc != 2 || std::string_view(argv[1]) != "--describe") return false;
  std::puts(json::serialize(describe(app)).c_str());
  return true;
}

}  // namespace ellm::describe
