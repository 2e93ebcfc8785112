// conformance: the share of the shared vectors ($ELLM_TEST_DATA) that pass, as a table: tokenizers, templates,
// malformed files, block formats, models. Exits with 1 where a line is neither complete nor explained.
#include <stdlib.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <cstdio>
#include <fstream>
#include <iterator>
#include <stdexcept>

#include "tools/conformance/report.h"

namespace ellm::conformance {

std::string read_file(const std::string& path) {
  std::ifstream in(path, std::ios::binary);
  if (!in) throw std::runtime_error("cannot read " + path);
  return {std::istreambuf_iterator<char>(in), {}};
}

std::vector<std::string> split(const std::string& text, const std::string& separator) {
  std::vector<std::string> parts;
  size_t begin = 0;
  for (size_t at; (at = text.find(separator, begin)) != text.npos; begin = at + separator.size())
    parts.push_back(text.substr(begin, at - begin));
  if (begin < text.size()) parts.push_back(text.substr(begin));
  return parts;
}

std::string unpack(const Options& options, const std::string& path) {
  const std::string to = options.scratch / std::filesystem::path(path).stem();
  const std::string command = "gzip -dc '" + path + "' > '" + to + "'";
  if (std::system(command.c_str()) != 0) throw std::runtime_error("failed: " + command);
  return to;
}

namespace {

/// A folder that goes with the program.
struct Scratch {
  std::filesystem::path path;
  Scratch() {
    std::string name = std::filesystem::temp_directory_path() / "ellm-conformance-XXXXXX";
    if (!::mkdtemp(name.data())) throw std::runtime_error("cannot make " + name);
    path = name;
  }
  ~Scratch() {
    std::error_code ignored;
    std::filesystem::remove_all(path, ignored);
  }
};

void print(const Line& line, const std::string& area) {
  const double share = line.total == 0 ? 0 : 100.0 * static_cast<double>(line.passed) / static_cast<double>(line.total);
  std::printf("%-11s  %-26s %5zu of %5zu  %5.1f %%", line.area == area ? "" : line.area.c_str(), line.name.c_str(),
              line.passed, line.total, share);
  if (line.explained > 0) std::printf("  %zu: %s", line.explained, line.explanation.c_str());
  if (!line.complete()) std::printf("  FAILS: %s", line.failure.c_str());
  std::printf("\n");
}

int run(const Options& options) {
  using Area = std::vector<Line> (*)(const Options&);
  std::string area;
  size_t lines = 0, bad = 0;
  for (const Area each : {tokenizer_lines, template_lines, malformed_lines, block_lines, model_lines}) {
    for (const Line& line : each(options)) {
      print(line, area);
      area = line.area;
      ++lines;
      bad += !line.complete();
    }
    std::fflush(stdout);
  }
  if (bad == 0) std::printf("%zu lines, each complete or explained\n", lines);
  else std::printf("%zu of %zu lines fall short without an explanation\n", bad, lines);
  return bad == 0 ? 0 : 1;
}

}  // namespace
}  // namespace ellm::conformance

int main(int argc, char** argv) {
  CLI::App app{"Prints the share of the shared test vectors that pass, every line 100 % or explained."};
  app.name("conformance");
  ellm::conformance::Options options;
  const char* data = std::getenv("ELLM_TEST_DATA");
  if (data) options.data = data;
  app.add_option("--data", options.data, "The folder of the vectors (default: $ELLM_TEST_DATA)")->type_name("DIR");
  CLI11_PARSE(app, argc, argv);
  if (options.data.empty()) {
    std::fprintf(stderr, "conformance: set ELLM_TEST_DATA or give --data\n");
    return 64;
  }
  try {
    const ellm::conformance::Scratch scratch;
    options.scratch = scratch.path;
    return ellm::conformance::run(options);
  } catch (const std::exception& error) {
    std::fprintf(stderr, "conformance: %s\n", error.what());
    return 70;
  }
}
