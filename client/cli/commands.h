// The subcommands of `ellm`. Each is a function that declares its options, parses its arguments and does its work; a
// failure is an exception (failure.h), which main reports.
#pragma once
#include <string>
#include <vector>

namespace ellm::cli {

struct Invocation {
  std::string name;                      // "ellm run"
  std::vector<std::string> arguments;    // after the name
  std::string socket;                    // --socket before the name, or empty
};

int run_command(Invocation& invocation);
int chat_command(Invocation& invocation);
int score_command(Invocation& invocation);
int models_command(Invocation& invocation);
int ps_command(Invocation& invocation);
int status_command(Invocation& invocation);
int tokenize_command(Invocation& invocation);
int detokenize_command(Invocation& invocation);
int template_command(Invocation& invocation);
int inspect_command(Invocation& invocation);

/// Replaces this program by `ellm-NAME` of the same directory, as git does. Returns only where there is none.
void execute_external(const std::string& name, const Invocation& invocation);

}  // namespace ellm::cli
