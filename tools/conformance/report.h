// The table of `conformance`: how many of the shared vectors pass, line by line, each all of them or explained.
#pragma once
#include <cstddef>
#include <filesystem>
#include <string>
#include <vector>

namespace ellm::conformance {

/// One line: of `total` vectors `passed` pass, and `explained` are left out for a reason that is stated.
struct Line {
  std::string area, name;
  size_t passed = 0, total = 0, explained = 0;
  std::string explanation = {};
  std::string failure = {};  // what went wrong first

  void pass() { total++, passed++; }
  void fail(const std::string& what) {
    total++;
    if (failure.empty()) failure = what;
  }
  void count(bool good, const std::string& what) { good ? pass() : fail(what); }
  void leave_out(const std::string& why, size_t vectors = 1) {
    total += vectors, explained += vectors;
    explanation = why;
  }
  bool complete() const { return total > 0 && passed + explained == total; }
};

struct Options {
  std::string data;               // $ELLM_TEST_DATA
  std::filesystem::path scratch;  // a folder of ours
};

std::vector<Line> tokenizer_lines(const Options& options);
std::vector<Line> template_lines(const Options& options);
std::vector<Line> malformed_lines(const Options& options);
std::vector<Line> block_lines(const Options& options);
std::vector<Line> model_lines(const Options& options);

std::string read_file(const std::string& path);
std::vector<std::string> split(const std::string& text, const std::string& separator);
/// FILE.gz unpacked below the scratch folder; its path there.
std::string unpack(const Options& options, const std::string& path);

}  // namespace ellm::conformance
