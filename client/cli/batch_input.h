// The file of a batch: where its lines stand and what they are called. It is read twice, so that it can be larger than
// memory: once for all names, then line by line as requests begin.
#pragma once
#include <cstdint>
#include <cstdio>
#include <memory>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "client/cli/batch_result.h"

namespace ellm::cli {

struct InputLine : LineName {
  uint64_t offset = 0, bytes = 0;  // without the newline
  uint64_t repeats = 0;            // the number of an earlier line with its custom_id
};

class BatchInput {
 public:
  /// Reads the whole file. Throws Failure where it cannot be read.
  explicit BatchInput(const std::string& path);

  const std::string& path() const { return path_; }
  /// Every line that is not blank, in order.
  const std::vector<InputLine>& lines() const { return lines_; }
  /// The index of the first line with a custom_id; lines().size() where there is none.
  size_t find(const std::string& custom_id) const;
  /// A line's text. Throws Failure where the file has changed since.
  std::string read(const InputLine& line) const;

 private:
  struct Close {
    void operator()(FILE* file) const { fclose(file); }
  };
  std::string path_;
  std::unique_ptr<FILE, Close> file_;
  std::vector<InputLine> lines_;
  std::unordered_map<std::string, size_t> index_;
};

}  // namespace ellm::cli
