// ellm: finds the subcommand and reports how it failed.
#include <fcntl.h>
#include <unistd.h>

#include <algorithm>

#include "client/cli/commands.h"
#include "client/cli/failure.h"
#include "client/cli/output.h"
#include "client/cli/overview.h"

namespace ellm::cli {
namespace {

constexpr Command kCommands[] = {
    {"run", run_command, "answer a prompt"},
    {"chat", chat_command, "converse"},
    {"batch", batch_command, "run a file of requests"},
    {"pull", nullptr, "fetch a model"},
    {"models", models_command, "list the models that are there"},
    {"load", load_command, "load a model, or a file"},
    {"unload", unload_command, "give a model's memory back"},
    {"rm", rm_command, "remove a model"},
    {"ps", ps_command, "list loaded models and running requests"},
    {"top", top_command, "watch who runs what, and how fast"},
    {"status", status_command, "how the daemon is doing"},
    {"tokenize", tokenize_command, "text to token ids"},
    {"detokenize", detokenize_command, "token ids to text"},
    {"template", template_command, "render a chat template"},
    {"inspect", inspect_command, "what a model file holds"},
    {"score", score_command, "log-probabilities and perplexity of a text"},
    {"cache", cache_command, "what is cached: list, pin, warm, flush"},
    {"bench", nullptr, "measure speed"},
    {"eval", nullptr, "measure what choices cost in quality"},
};

const Command* find_command(const std::string& name) {
  auto found =
      std::find_if(std::begin(kCommands), std::end(kCommands), [&](const Command& c) { return name == c.name; });
  return found == std::end(kCommands) ? nullptr : found;
}

int dispatch(std::vector<std::string> arguments) {
  Invocation invocation;
  size_t at = 0;
  for (; at < arguments.size() && arguments[at].starts_with('-'); at++) {
    const std::string& option = arguments[at];
    if (option == "--help" || option == "-h") {
      write_out(overview(kCommands));
      return kOk;
    } else if (option == "--version") {
      write_out("ellm " ELLM_VERSION "\n");
      return kOk;
    } else if (option == "--describe") {
      write_out(description(kCommands));
      return kOk;
    } else if (option == "--socket" && at + 1 < arguments.size()) {
      invocation.socket = arguments[++at];
    } else if (option.starts_with("--socket=")) {
      invocation.socket = option.substr(sizeof "--socket=" - 1);
    } else {
      throw Failure(kUsage, "unknown option " + option + ": see `ellm --help`");
    }
  }
  if (at == arguments.size()) {
    write_out(overview(kCommands));
    return kUsage;
  }
  std::string name = arguments[at];
  invocation.arguments.assign(arguments.begin() + static_cast<ptrdiff_t>(at) + 1, arguments.end());
  if (name == "help") {
    if (invocation.arguments.empty()) return dispatch({"--help"});
    return dispatch({invocation.arguments[0], "--help"});
  }
  invocation.name = "ellm " + name;
  const Command* command = find_command(name);
  if (command && command->run) return command->run(invocation);
  execute_external(name, invocation);
  if (command) throw Failure(kUnavailable, "ellm-" + name + " is not installed beside ellm");
  throw Failure(kUsage, "there is no command '" + name + "': see `ellm --help`");
}

/// So that no socket takes the number of a standard stream that the caller has closed.
void open_standard_streams() {
  for (int fd = 0; fd <= 2; fd++)
    if (fcntl(fd, F_GETFD) < 0 && open("/dev/null", fd == 0 ? O_RDONLY : O_WRONLY) < 0) _exit(kInternal);
}

}  // namespace
}  // namespace ellm::cli

int main(int argc, char** argv) {
  ellm::cli::open_standard_streams();
  try {
    return ellm::cli::dispatch({argv + 1, argv + argc});
  } catch (...) {
    return ellm::cli::report_failure();
  }
}
