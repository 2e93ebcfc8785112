// What `ellm` says of itself as a whole: `ellm --help`, and `ellm --describe` for completions and manual pages.
#pragma once
#include <span>
#include <string>

#include "client/cli/commands.h"

namespace ellm::cli {

struct Command {
  const char* name;
  int (*run)(Invocation&);  // null: a program of its own
  const char* summary;
};

std::string overview(std::span<const Command> commands);

/// One JSON object: options, examples, environment, files, exit codes and every command as describe() has it. A program
/// of its own is asked for its description; one that is not installed has none.
std::string description(std::span<const Command> commands);

}  // namespace ellm::cli
