// The subcommands of `ellm`. Each is a function that declares its options, parses its arguments and does its work; a
// failure is an exception (failure.h), which main reports.
#pragma once
#include <boost/json/object.hpp>
#include <string>
#include <vector>

namespace ellm::cli {

struct Invocation {
  std::string name;                            // "ellm run"
  std::vector<std::string> arguments;          // after the name
  std::string socket;                          // --socket before the name, or empty
  boost::json::object* description = nullptr;  // the command only describes itself here and ends by Exit
};

int run_command(Invocation& invocation);
int chat_command(Invocation& invocation);
int batch_command(Invocation& invocation);
int score_command(Invocation& invocation);
int cache_command(Invocation& invocation);
int models_command(Invocation& invocation);
int load_command(Invocation& invocation);
int unload_command(Invocation& invocation);
int rm_command(Invocation& invocation);
int ps_command(Invocation& invocation);
int status_command(Invocation& invocation);
int top_command(Invocation& invocation);
int tokenize_command(Invocation& invocation);
int detokenize_command(Invocation& invocation);
int template_command(Invocation& invocation);
int inspect_command(Invocation& invocation);

/// The path of `ellm-NAME` beside this program; empty where there is none.
std::string external_program(const std::string& name);

/// Replaces this program by `ellm-NAME` of the same directory, as git does. Returns only where there is none.
void execute_external(const std::string& name, const Invocation& invocation);

}  // namespace ellm::cli
