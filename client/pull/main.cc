// ellm-pull: brings models into the models directory. `ellm pull` starts it.
#include <CLI/CLI.hpp>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <filesystem>

#include "client/describe/describe.h"
#include "client/places.h"
#include "client/pull/bar.h"
#include "client/pull/catalogue.h"
#include "client/pull/failure.h"
#include "client/pull/fetch.h"
#include "client/pull/hand_over.h"
#include "client/pull/hub_token.h"
#include "client/pull/install.h"
#include "client/pull/pull_folder.h"
#include "daemon/format/gguf.h"
#include "daemon/format/model_name.h"

namespace {

using namespace ellm::pull;

constexpr const char* kDescription =
    "Brings models into the models directory, checked before they get their names. What an interrupted pull has "
    "fetched\n"
    "is used by the next one.";
constexpr const char* kExamples =
    "Examples:\n"
    "  ellm pull                                   SmolLM2-135M-Instruct, the default\n"
    "  ellm pull qwen-0.5b qwen-1.5b               by names of the catalogue (--list)\n"
    "  ellm pull hf:OWNER/REPO/model-Q4_K_M.gguf   a file of a Hugging Face repository; OWNER/REPO@REVISION, too\n"
    "  ellm pull hf:OWNER/REPO/big-00001-of-00003.gguf      all parts of a split model\n"
    "  ellm pull https://example.org/m.gguf --sha256 9f86d08…   any address, with its checksum\n"
    "  ellm pull ~/model.gguf --name mine          a file of your own (all parts of a split one)\n"
    "\nWhere the system's ellmd cannot read your files and you are its administrator, they are handed over to it.\n"
    "HF_TOKEN, or what `huggingface-cli login` keeps, is sent to HF_ENDPOINT (https://huggingface.co) alone; proxies are\n"
    "those of http_proxy, https_proxy; certificates those of the system, CURL_CA_BUNDLE, SSL_CERT_FILE or SSL_CERT_DIR.\n"
    "What an interrupted pull has fetched is removed by a later one after 14 days, or by `ellm rm NAME`.\n"
    "Exit codes are those of sysexits(3); 130 after Ctrl-C.";

volatile std::sig_atomic_t interrupts = 0;

void count_signals() {
  struct sigaction action{};
  action.sa_handler = [](int) { interrupts = interrupts + 1; };
  for (const int number : {SIGINT, SIGTERM, SIGHUP}) ::sigaction(number, &action, nullptr);
  ::signal(SIGXFSZ, SIG_IGN);  // a file that may not grow is an error of write(2)
  ::signal(SIGPIPE, SIG_IGN);
}

std::string variable(const char* name, const char* otherwise) {
  const char* value = std::getenv(name);
  return value == nullptr || *value == '\0' ? otherwise : value;
}

struct Options {
  std::vector<std::string> what;
  std::string directory = ellm::client::models_directory(), name;
  bool list = false, check = false;
  std::unique_ptr<ellm::client::Client> daemon;  // the system's, where it gets the models
  FetchOptions fetch;
};

void print_catalogue() {
  for (const CatalogueEntry& e : catalogue()) {
    std::printf("%-10s %5ju MB  %-10s  %s\n", e.name, static_cast<uintmax_t>(e.bytes / 1000000), e.licence, e.title);
  }
}

constexpr uint32_t kAbandonedDays = 14;

void clean_up(const std::string& directory) {
  remove_abandoned(directory, kAbandonedDays, [](const std::string& name, uint64_t bytes) {
    std::fprintf(stderr, "removed the %ju MB that an interrupted pull of %s left more than %u days ago\n",
                 static_cast<uintmax_t>((bytes + 999999) / 1000000), name.c_str(), kAbandonedDays);
  });
}

void say_already_there(const std::string& name) { std::fprintf(stderr, "%s: already there\n", name.c_str()); }

std::string pull_entry(const CatalogueEntry& entry, const Options& options, const Progress& progress) {
  const std::string own = options.directory + "/" + entry.name + ".gguf";
  if (!options.fetch.force && is_installed(entry, options.directory)) {
    if (options.check) verify(entry, options.directory);
    if (!options.daemon) say_already_there(entry.name);
  } else {
    install_entry(entry, options.directory, progress);
  }
  if (!options.daemon) return own;
  const std::string there = hand_over(*options.daemon, entry.name, {own}, options.fetch.force);
  std::filesystem::remove(own);
  return there;
}

std::string pull_address(const std::string& address, const Options& options, const Progress& progress) {
  std::string hub = variable("HF_ENDPOINT", "https://huggingface.co");
  while (hub.ends_with('/')) hub.pop_back();
  const Source source = parse_source(address, hub, options.name);
  if (const std::string there = find_installed(source, options.directory); !there.empty() && !options.fetch.force) {
    verify_installed(source, options.directory, options.fetch.sha256, progress);
    say_already_there(source.name);
    return there;
  }
  Staged staged = Staged::fetch(source, options.directory, options.fetch, progress);
  if (!options.daemon) return staged.publish();
  const std::vector<std::string> files(staged.files().begin(), staged.files().end());
  const std::string there = hand_over(*options.daemon, source.name, files, options.fetch.force);
  staged.remove();
  return there;
}

std::string pull_file(const std::string& path, const Options& options, const Progress& progress) {
  if (!options.daemon) return install_file(path, options.name, options.directory, progress);
  const std::string name = options.name.empty() ? ellm::format::model_name(path) : options.name;
  return hand_over(*options.daemon, name, ellm::format::Gguf::open(path)->part_paths(), options.fetch.force);
}

/// What the system's daemon has already under the name that `what` would get; empty where it has none.
std::string find_at_daemon(const std::string& what, const Options& options) {
  if (!options.daemon || options.fetch.force) return {};
  const std::string name =
      options.name.empty() ? ellm::format::model_name(what.substr(0, what.find('?'))) : options.name;
  const std::string there = find_at(*options.daemon, name);
  if (!there.empty()) say_already_there(name);
  return there;
}

std::string pull_one(const std::string& what, const Options& options) {
  const bool remote = is_remote(what);
  const CatalogueEntry* entry = remote ? nullptr : find_entry(what);
  if (!remote && entry == nullptr && !std::filesystem::exists(what)) {
    throw PullError(EX_NOINPUT, "'" + what +
                                    "' is neither an address (https://…, hf:OWNER/REPO/FILE), nor a file, nor one of " +
                                    catalogue_names());
  }
  if (std::string there = find_at_daemon(what, options); !there.empty()) return there;
  std::filesystem::create_directories(options.directory);
  Bar bar(what.substr(what.rfind('/') + 1));
  const Progress progress = [&](const std::string& doing, uint64_t done, uint64_t total) {
    if (interrupts) throw PullError(kInterrupted, "interrupted; the same command goes on where this one stopped");
    bar.show(doing, done, total);
  };
  if (remote) return pull_address(what, options, progress);
  return entry != nullptr ? pull_entry(*entry, options, progress) : pull_file(what, options, progress);
}

void check_options(Options& options) {
  for (std::string& sum : options.fetch.sha256) {
    const std::string parsed = parse_sha256(sum);
    if (parsed.empty()) throw PullError(EX_USAGE, "--sha256 '" + sum + "' is not a checksum: 64 hexadecimal digits");
    sum = parsed;
  }
  const bool address = options.what.size() == 1 && is_remote(options.what.front());
  if (!options.fetch.sha256.empty() && !address)
    throw PullError(EX_USAGE, "--sha256 goes with one address (the catalogue has its own checksums)");
  if (options.name.empty()) return;
  if (options.what.size() != 1 || (!address && find_entry(options.what.front()) != nullptr)) {
    throw PullError(EX_USAGE, "--name goes with one address or file");
  }
  if (const std::string fault = ellm::format::model_name_fault(options.name); !fault.empty())
    throw PullError(EX_USAGE, "--name: " + fault);
}

void parse(CLI::App& app, Options& options, int argc, char** argv) {
  app.name("ellm pull");
  app.footer(kExamples);
  app.add_option("NAME|FILE|URL", options.what,
                 "Catalogue names, addresses (https://…, hf:OWNER/REPO/FILE) or GGUF files (default: smollm2)");
  app.add_option("--dir", options.directory, "Models directory")->capture_default_str()->type_name("DIR");
  app.add_option("--name", options.name, "What the model is called, instead of what its file is")->type_name("NAME");
  app.add_option("--sha256", options.fetch.sha256, "The file's checksum; once for each part of a split model")
      ->type_name("HEX")
      ->allow_extra_args(false);
  app.add_flag("--force", options.fetch.force, "Fetch anew what is there already");
  app.add_flag("--list", options.list, "Print the catalogue");
  app.add_flag("--verify", options.check, "Compare the sha256 of catalogue models that are there already, too");
  app.add_option("--timeout", options.fetch.download.timeout_seconds, "Give an attempt up after so long without a byte")
      ->capture_default_str()
      ->check(CLI::Range(1, 86400))
      ->type_name("SECONDS");
  app.add_option("--retries", options.fetch.download.retries, "Attempts after one that brought nothing")
      ->capture_default_str()
      ->check(CLI::Range(0, 1000))
      ->type_name("N");
  if (ellm::describe::describe_if_asked(app, argc, argv)) std::exit(EX_OK);
  try {
    app.parse(argc, argv);
  } catch (const CLI::CallForHelp& e) {
    std::exit(app.exit(e));
  } catch (const CLI::ParseError& e) {
    throw PullError(EX_USAGE, std::string(e.what()) + ": see `ellm pull --help`");
  }
}

int report(int code, std::string message) {
  for (char& c : message) {
    if (static_cast<unsigned char>(c) < 0x20) c = ' ';  // one line, whatever a server or a file says
  }
  std::fprintf(stderr, "ellm pull: %s\n", message.c_str());
  return interrupts ? kInterrupted : code;
}

int run(int argc, char** argv) {
  CLI::App app{kDescription};
  Options options;
  parse(app, options, argc, argv);
  if (options.list) {
    print_catalogue();
    return EX_OK;
  }
  if (options.what.empty()) options.what.push_back("smollm2");
  check_options(options);
  options.fetch.download.token = hub_token();
  options.fetch.download.interrupted = [] { return interrupts != 0; };
  count_signals();
  if (!app.count("--dir") && options.directory != ellm::client::kSystemModels) options.daemon = find_foreign_daemon();
  for (const std::string& what : options.what) {
    std::printf("%s\n", pull_one(what, options).c_str());
    std::fflush(stdout);
  }
  clean_up(options.directory);
  return EX_OK;
}

}  // namespace

int main(int argc, char** argv) {
  try {
    return run(argc, argv);
  } catch (const PullError& e) {
    return report(e.exit_code(), e.what());
  } catch (const ellm::format::FormatError& e) {
    return report(EX_DATAERR, e.what());
  } catch (const std::filesystem::filesystem_error& e) {
    return report(EX_CANTCREAT, e.path1().string() + ": " + e.code().message());
  } catch (const std::exception& e) {
    return report(EX_SOFTWARE, e.what());
  }
}
