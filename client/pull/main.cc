// ellm-pull: brings models into the models directory. `ellm pull` starts it.
#include <sys/stat.h>
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <chrono>
#include <cstdio>
#include <filesystem>

#include "client/describe/describe.h"
#include "client/places.h"
#include "client/pull/catalogue.h"
#include "client/pull/install.h"

namespace {

using namespace ellm::pull;

constexpr int kUnavailable = 69, kCannotCreate = 73, kUsage = 64;

/// A bar on a terminal, a line per tenth elsewhere.
class Bar {
 public:
  explicit Bar(std::string name) : name_(std::move(name)), terminal_(::isatty(2) != 0) {}
  ~Bar() { if (terminal_ && drawn_) std::fputs("\r\033[K", stderr); }
  void show(const std::string& what, uint64_t done, uint64_t total) {
    const int percent = total == 0 ? 0 : static_cast<int>(100 * done / total);
    if (what == what_ && (terminal_ ? percent == percent_ : percent / 10 == percent_ / 10)) return;
    what_ = what;
    percent_ = percent;
    drawn_ = true;
    if (terminal_) {
      const std::string bar(static_cast<size_t>(percent) * 30 / 100, '#');
      std::fprintf(stderr, "\r%s: %-9s [%-30s] %3d %% of %ju MB", name_.c_str(), what.c_str(), bar.c_str(), percent,
                   static_cast<uintmax_t>(total / 1000000));
    } else {
      std::fprintf(stderr, "%s: %s %d %% of %ju MB\n", name_.c_str(), what.c_str(), percent, static_cast<uintmax_t>(total / 1000000));
    }
  }

 private:
  std::string name_, what_;
  int percent_ = -1;
  bool terminal_, drawn_ = false;
};

void print_catalogue() {
  for (const CatalogueEntry& e : catalogue()) {
    std::printf("%-10s %5ju MB  %-10s  %s\n", e.name, static_cast<uintmax_t>(e.bytes / 1000000), e.licence, e.title);
  }
}

std::string pull_one(const std::string& what, const std::string& directory, bool check) {
  const CatalogueEntry* entry = find_entry(what);
  if (entry == nullptr && !std::filesystem::exists(what)) {
    throw std::runtime_error("'" + what + "' is neither a file nor one of " + catalogue_names());
  }
  std::filesystem::create_directories(directory);
  Bar bar(what);
  const auto progress = [&](const std::string& doing, uint64_t done, uint64_t total) { bar.show(doing, done, total); };
  if (entry == nullptr) return install_file(what, directory, progress);
  if (!is_installed(*entry, directory)) return install_entry(*entry, directory, progress);
  if (check) verify(*entry, directory);
  std::fprintf(stderr, "%s: already there\n", entry->name);
  return directory + "/" + entry->name + ".gguf";
}

}  // namespace

int main(int argc, char** argv) {
  CLI::App app{"Brings models into the models directory, checked by length and sha256."};
  app.name("ellm pull");
  app.footer("Examples:\n  ellm pull                    SmolLM2-135M-Instruct, the default\n  ellm pull qwen-0.5b qwen-1.5b\n"
             "  ellm pull ~/model.gguf       a file of your own (all parts of a split one)\n  ellm pull --list             what there is");
  std::vector<std::string> names;
  std::string directory = ellm::client::models_directory();
  bool list = false, check = false;
  app.add_option("NAME|PATH", names, "Catalogue names or GGUF files (default: smollm2)");
  app.add_option("--dir", directory, "Models directory")->capture_default_str();
  app.add_flag("--list", list, "Print the catalogue");
  app.add_flag("--verify", check, "Compare the sha256 of files that are there already, too");
  if (ellm::describe::describe_if_asked(app, argc, argv)) return 0;
  try {
    app.parse(argc, argv);
  } catch (const CLI::ParseError& e) {
    return app.exit(e) == 0 ? 0 : kUsage;
  }
  if (list) {
    print_catalogue();
    return 0;
  }
  if (names.empty()) names.push_back("smollm2");
  try {
    for (const std::string& name : names) std::printf("%s\n", pull_one(name, directory, check).c_str());
  } catch (const std::filesystem::filesystem_error& e) {
    std::fprintf(stderr, "ellm pull: %s: %s\n", e.path1().c_str(), e.code().message().c_str());
    return kCannotCreate;
  } catch (const std::exception& e) {
    std::fprintf(stderr, "ellm pull: %s\n", e.what());
    return kUnavailable;
  }
  return 0;
}
