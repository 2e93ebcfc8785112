// CLI11 as the house uses it.
#include "client/cli/command_line.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <charconv>
#include <cstring>
#include <memory>

#include "client/cli/failure.h"
#include "client/cli/output.h"
#include "client/describe/describe.h"

namespace ellm::cli {
namespace {

std::string read_all(int fd, const std::string& name) {
  std::string text;
  for (;;) {
    size_t have = text.size();
    text.resize(have + (64 << 10));
    ssize_t got = read(fd, text.data() + have, text.size() - have);
    text.resize(have + (got > 0 ? static_cast<size_t>(got) : 0));
    if (got < 0 && errno == EINTR) continue;
    if (got < 0) throw Failure(kNoInput, "cannot read " + name + ": " + strerror(errno));
    if (got == 0) return text;
    if (text.size() > client::kMaxFrameBytes)
      throw Failure(
          kData, name + " has more than " + std::to_string(client::kMaxFrameBytes >> 20) + " MiB: cut it into pieces");
  }
}

/// Names, types and defaults; what excludes what is said when it happens.
class HelpFormatter : public CLI::Formatter {
 public:
  HelpFormatter() { column_width(34); }
  std::string make_description(const CLI::App* app) const override { return app->get_description() + "\n\n"; }
  std::string make_option_opts(const CLI::Option* option) const override {
    std::string text;
    if (!option->get_positional() && option->get_type_size() != 0) text += " " + option->get_type_name();
    if (!option->get_default_str().empty()) text += "=" + option->get_default_str();
    return text;
  }
};

}  // namespace

CommandLine::CommandLine(Invocation& invocation, const char* description, const char* examples)
    : app(description, invocation.name), invocation_(invocation), socket_(invocation.socket) {
  app.footer(std::string("Examples:\n") + examples);
  app.formatter(std::make_shared<HelpFormatter>());
  app.add_option("--socket", socket_, "The daemon's socket")->type_name("PATH");
  app.add_option("--wait", wait_seconds_, "How long to wait for a daemon that is starting or restarting")
      ->type_name("SECONDS")
      ->capture_default_str()
      ->check(CLI::Range(0.0, 1e6));
}

CLI::Option* CommandLine::add_model() {
  return app.add_option("-m,--model", model, "A model's name (see `ellm models`); default: the daemon's default model")
      ->type_name("NAME");
}
CLI::Option* CommandLine::add_namespace() {
  return app
      .add_option("--namespace", name_space,
                  "Prefixes of a namespace that others use too, as the configuration names it")
      ->type_name("NAME");
}

CLI::Option* CommandLine::add_model_file() {
  return app.add_option("--model-file", model_file, "Read this GGUF file; no daemon is needed")->type_name("FILE.gguf");
}
CLI::Option* CommandLine::add_json() { return app.add_flag("--json", json, "One JSON object, for scripts"); }

CLI::Option* CommandLine::add_list(const char* name, std::vector<std::string>& values, const char* description) {
  return app.add_option(name, values, description)->allow_extra_args(false);
}

void CommandLine::usage_error(const std::string& message) const {
  throw Failure(kUsage, message + ": see `" + invocation_.name + " --help`");
}

void CommandLine::parse() {
  if (invocation_.description) {
    *invocation_.description = describe::describe(app);
    throw Exit{kOk};
  }
  try {
    app.parse(std::vector<std::string>(invocation_.arguments.rbegin(), invocation_.arguments.rend()));
  } catch (const CLI::CallForHelp&) {
    std::string help = app.help();
    for (size_t gap; (gap = help.find("\n\n\n")) != std::string::npos;) help.erase(gap, 1);
    write_out(help);
    throw Exit{kOk};
  } catch (const CLI::ExtrasError&) {
    std::string extra = app.remaining().front();
    if (extra.starts_with('-'))
      usage_error("unknown option " + extra + " (put -- before a text that begins with a dash)");
    usage_error("unexpected argument '" + extra + "' (quote a text of several words)");
  } catch (const CLI::ParseError& error) {
    usage_error(error.what());
  }
}

client::ClientOptions CommandLine::client_options(std::function<bool()> interrupted) const {
  auto wait = std::chrono::milliseconds(static_cast<int64_t>(wait_seconds_ * 1000));
  return {socket_, "ellm " ELLM_VERSION, std::move(interrupted), wait};
}

bool stdin_is_piped() {
  struct stat stat;
  return fstat(STDIN_FILENO, &stat) == 0 && !isatty(STDIN_FILENO);
}

std::string read_stdin() { return read_all(STDIN_FILENO, "stdin"); }

std::string read_file(const std::string& path) {
  int fd = open(path.c_str(), O_RDONLY | O_CLOEXEC);
  if (fd < 0) throw Failure(errno == EACCES ? kDenied : kNoInput, "cannot open " + path + ": " + strerror(errno));
  struct Close {
    int fd;
    ~Close() { close(fd); }
  } closer{fd};
  return read_all(fd, path);
}

std::string text_or_stdin(const CommandLine& line, const CLI::Option* given, const std::string& text,
                          const char* what) {
  if (given->count() > 0) return text;
  if (!stdin_is_piped()) line.usage_error(std::string("give ") + what + " as an argument or on stdin");
  return read_stdin();
}

std::vector<uint32_t> parse_ids(const std::string& text) {
  static const char kBetween[] = " \t\r\n,[]";
  std::vector<uint32_t> ids;
  for (size_t at = 0; (at = text.find_first_not_of(kBetween, at)) != std::string::npos;) {
    size_t end = std::min(text.find_first_of(kBetween, at), text.size());
    uint32_t id = 0;
    auto [stop, error] = std::from_chars(text.data() + at, text.data() + end, id);
    if (error != std::errc() || stop != text.data() + end)
      throw Failure(kData, "'" + text.substr(at, std::min<size_t>(end - at, 40)) +
                               "' is not a token id: ids are numbers separated by blanks or commas");
    ids.push_back(id);
    at = end;
  }
  return ids;
}

}  // namespace ellm::cli
