// A program's command line as data: what CLI11 says in --help, as JSON. `PROGRAM --describe` prints it;
// tools/shell-files makes completions and manual pages of it. Pure; any thread.
#pragma once
#include <CLI/App.hpp>
#include <boost/json/object.hpp>

namespace ellm::describe {

/// {"name", "description", "footer", "options": [{"names": ["-m", "--model"], "value", "help", "default", "group",
/// "repeatable"}, …], "arguments": [{"name", "help", "required", "repeatable"}, …]}. "value" is empty for a flag.
boost::json::object describe(const CLI::App& app);

/// Where the only argument is --describe: prints the description on one line and returns true.
bool describe_if_asked(const CLI::App& app, int argc, char** argv);

}  // namespace ellm::describe
