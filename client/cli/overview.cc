// See overview.h.
#include "client/cli/overview.h"

#include <boost/json/parse.hpp>
#include <boost/json/serialize.hpp>
#include <cstdio>

#include "client/cli/failure.h"
#include "client/cli/output.h"

namespace ellm::cli {
namespace {

namespace json = boost::json;

constexpr const char* kTitle = "language models on this machine's CPUs, served by ellmd";

constexpr const char* kExamples =
    "  ellm pull                                    fetch a small model to begin with\n"
    "  ellm run \"Why is the sky blue?\"              ask\n"
    "  ellm run \"Summarise:\" < report.txt           ask about a file\n"
    "  git diff | ellm run --system \"Review this.\"  use it in a pipe\n"
    "  ellm run --json \"Name three colours\" | jq -r .text\n"
    "  ellm chat                                    converse; Ctrl-C stops an answer, Ctrl-D leaves\n"
    "  ellm batch questions.jsonl                   run a file of requests; goes on where it was interrupted\n"
    "  ellm status                                  is the daemon there, what does it do\n";

constexpr const char* kDescription =
    "Each command explains itself: `ellm run --help`. The daemon's socket: --socket PATH, else $ELLM_SOCKET,\n"
    "else $XDG_RUNTIME_DIR/ellm/ellmd.sock or /run/ellm/ellmd.sock.\n"
    "In pipelines: answers go to stdout, everything else to stderr; --json prints one object a line; colours and progress\n"
    "only where a terminal reads them, colours not where $NO_COLOR is set. Exit codes are those of sysexits(3).\n";

struct Row {
  const char *name, *value, *help;
};
constexpr Row kOptions[] = {{"--socket", "PATH", "The daemon's socket"},
                            {"--version", "", "Print the version and exit"},
                            {"--help", "", "Print the commands and exit"}};
constexpr Row kEnvironment[] = {
    {"ELLM_SOCKET", "", "The daemon's socket."},
    {"XDG_RUNTIME_DIR", "", "Where a user's own daemon has its socket: ellm/ellmd.sock below it."},
    {"XDG_DATA_HOME", "", "Where a user's models are: ellm/models below it, ~/.local/share without it."},
    {"XDG_STATE_HOME", "", "Where `ellm chat` keeps its history: ellm/history below it, ~/.local/state without it."},
    {"NO_COLOR", "", "Where it is set and not empty, nothing is coloured or dimmed."}};
constexpr Row kFiles[] = {{"/run/ellm/ellmd.sock", "", "The system daemon's socket."},
                          {"/var/lib/ellm/models", "", "The system's models."}};

json::array rows_json(std::span<const Row> rows) {
  json::array array;
  for (const Row& row : rows) array.push_back(json::object{{"name", row.name}, {"help", row.help}});
  return array;
}

json::array options_json() {
  json::array array;
  for (const Row& row : kOptions)
    array.push_back(json::object{{"names", json::array{row.name}},
                                 {"value", row.value},
                                 {"help", row.help},
                                 {"default", ""},
                                 {"group", "Options"},
                                 {"repeatable", false}});
  return array;
}

/// What `ellm-NAME --describe` prints; empty where there is no such program.
json::object ask_external(const std::string& name) {
  const std::string program = external_program(name);
  if (program.empty()) return {};
  FILE* pipe = popen(("exec '" + program + "' --describe").c_str(), "re");
  if (!pipe) throw Failure(kInternal, "cannot start " + program);
  std::string text;
  char buffer[4096];
  for (size_t got; (got = fread(buffer, 1, sizeof buffer, pipe)) > 0;) text.append(buffer, got);
  json::error_code error;
  json::value value = json::parse(text, error);
  if (pclose(pipe) != 0 || error || !value.is_object())
    throw Failure(kInternal, program + " --describe printed no description (see client/describe/describe.h)");
  return std::move(value.get_object());
}

json::object describe_command(const Command& command) {
  json::object object;
  if (!command.run) {
    object = ask_external(command.name);
  } else {
    Invocation invocation{std::string("ellm ") + command.name, {}, "", &object};
    try {
      command.run(invocation);
    } catch (const Exit&) {
    }
  }
  object["name"] = command.name;
  object["summary"] = command.summary;
  return object;
}

}  // namespace

std::string overview(std::span<const Command> commands) {
  std::string text = std::string("ellm: ") + kTitle + "\n\nUsage: ellm [--socket PATH] COMMAND …\n\nCommands:\n";
  for (const Command& command : commands) text += format("  %-11s %s\n", command.name, command.summary);
  return text + "\nExamples:\n" + kExamples + "\n" + kDescription;
}

std::string description(std::span<const Command> commands) {
  json::array list, codes;
  for (const Command& command : commands) list.push_back(describe_command(command));
  for (const ExitMeaning& exit : exit_meanings())
    codes.push_back(json::object{{"code", exit.code}, {"meaning", exit.meaning}});
  return json::serialize(json::object{{"name", "ellm"},
                                      {"version", ELLM_VERSION},
                                      {"summary", kTitle},
                                      {"description", kDescription},
                                      {"footer", std::string("Examples:\n") + kExamples},
                                      {"options", options_json()},
                                      {"commands", std::move(list)},
                                      {"environment", rows_json(kEnvironment)},
                                      {"files", rows_json(kFiles)},
                                      {"exit_codes", std::move(codes)}}) +
         "\n";
}

}  // namespace ellm::cli
