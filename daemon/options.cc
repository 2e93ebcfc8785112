// See options.h.
#include "daemon/options.h"

#include <sysexits.h>

#include <CLI/CLI.hpp>
#include <iostream>

#include "client/describe/describe.h"

namespace ellm::daemon {
namespace {

struct Option {
  const char* flag;
  const char* key;
  const char* type;
  std::vector<std::string> values;
};

}  // namespace

Options read_options(int argc, char** argv) {
  CLI::App app(
      "ellmd serves language models to this machine's processes over a Unix socket.\n"
      "Without options it listens on the default socket and loads a model when a request names it.\n",
      "ellmd");
  app.footer(
      "\nExamples:\n"
      "  ellmd                                   serve what is in the models directory\n"
      "  ellmd --model smollm2                   load a model at the start\n"
      "  ellmd --model ~/m.gguf --socket ./s     a private daemon; then: ellm --socket ./s run \"Hello\"\n"
      "  ellmd --print-config > ellmd.toml       a configuration file to start from\n"
      "\nThe configuration is read once; restart the daemon to change it. SIGTERM lets running requests end.");
  app.set_version_flag("--version", "ellmd " ELLM_VERSION);
  Options options;
  Option settings[] = {{"--model", "models", "PATH|NAME", {}},     {"--socket", "socket", "PATH", {}},
                       {"--threads", "threads", "N", {}},          {"--kernels", "kernels", "LEVEL", {}},
                       {"--kv-type", "kv.type", "TYPE", {}},       {"--kv-keep", "kv.keep", "WHETHER", {}},
                       {"--cache-disk", "cache.disk", "SIZE", {}}, {"--memory-keep", "memory.keep", "WHETHER", {}}};
  app.add_option("--config", options.config_file, "configuration file")->type_name("FILE");
  for (Option& setting : settings) {
    Config::visit(options.config, [&](const char* key, auto&, const Rule& rule, const char* doc) {
      if (std::string_view(key) != setting.key) return;
      const std::string help = rule.one_of != nullptr ? std::string(rule.one_of) + ". " + doc : doc;
      auto* option =
          app.add_option(setting.flag, setting.values, help)->type_name(setting.type)->allow_extra_args(false);
      if (std::string_view(key) != "models") option->expected(1);
    });
  }
  app.add_flag("--print-config", options.print_config, "print the configuration and exit");
  app.add_flag("--check-config", options.check_config, "check the configuration and exit");
  if (describe::describe_if_asked(app, argc, argv)) std::exit(EX_OK);
  try {
    app.parse(argc, argv);
  } catch (const CLI::Success& e) {
    std::exit(app.exit(e));
  } catch (const CLI::ParseError& e) {
    std::cerr << "ellmd: " << e.what() << " (see ellmd --help)\n";
    std::exit(EX_USAGE);
  }
  if (options.config_file.empty()) options.config_file = find_config_file();
  if (!options.config_file.empty()) read_config(options.config_file, options.config);
  for (const Option& setting : settings) {
    if (std::string_view(setting.key) == "models" && !setting.values.empty()) options.config.models.clear();
    for (const auto& value : setting.values) set_option(options.config, setting.key, value, setting.flag);
  }
  return options;
}

}  // namespace ellm::daemon
