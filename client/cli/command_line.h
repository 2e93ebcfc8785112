// What every subcommand shares: parsing with one-line errors, help with examples, --socket, texts and ids from
// arguments or stdin, and the connection.
#pragma once
#include <CLI/CLI.hpp>
#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "client/cli/commands.h"
#include "client/client.h"

namespace ellm::cli {

class CommandLine {
 public:
  CommandLine(Invocation& invocation, const char* description, const char* examples);

  CLI::App app;
  std::string model, model_file;  // of add_model(), add_model_file()
  std::string name_space;         // of add_namespace()
  bool json = false;              // of add_json()

  CLI::Option* add_model();
  CLI::Option* add_model_file();
  CLI::Option* add_namespace();
  CLI::Option* add_json();
  /// A repeatable option that takes one value each time, as it is.
  CLI::Option* add_list(const char* name, std::vector<std::string>& values, const char* description);

  /// Throws Failure (usage), Exit (after --help).
  void parse();
  /// Usage error: "MESSAGE: see `ellm run --help`".
  [[noreturn]] void usage_error(const std::string& message) const;

  client::ClientOptions client_options(std::function<bool()> interrupted = {}) const;
  client::Client connect(std::function<bool()> interrupted = {}) const {
    return client::Client(client_options(std::move(interrupted)));
  }
  bool offline() const { return !model_file.empty(); }

 private:
  Invocation& invocation_;
  std::string socket_;
  double wait_seconds_ = static_cast<double>(client::kDefaultWait.count()) / 1000;
};

/// Something other than a terminal is at stdin.
bool stdin_is_piped();
/// All of stdin. Throws Failure where it cannot be read or is longer than a message may be.
std::string read_stdin();
std::string read_file(const std::string& path);

/// The argument where it was given, else stdin; a usage error that asks for `what` where that is a terminal.
std::string text_or_stdin(const CommandLine& line, const CLI::Option* given, const std::string& text, const char* what);

/// "1 2, 3" or "[1, 2, 3]". Throws Failure that names what is no id.
std::vector<uint32_t> parse_ids(const std::string& text);

}  // namespace ellm::cli
