// The results of a batch on disk. They arrive in any order and are written in the input's, a line at a time, so that
// the file is right whenever the program ends, however it ends:
//
//   FILE.out.jsonl          results of the input's first lines, in order; at most its last line is not whole
//   FILE.out.jsonl.ahead    results that came before an earlier line's, in any order; gone at the end
//
// A run that finds them goes on behind them. Held under a lock: two runs never write one file. One thread.
#pragma once
#include <cstdint>
#include <map>
#include <string>

#include "client/cli/batch_input.h"

namespace ellm::cli {

class BatchOutput {
 public:
  /// Opens or makes the file; "-" is stdout. What is no regular file is written and not read. `restart` forgets what is
  /// there. Throws Failure where what is there are not this input's results.
  BatchOutput(const std::string& path, const BatchInput& input, bool restart);
  ~BatchOutput();
  BatchOutput(const BatchOutput&) = delete;
  BatchOutput& operator=(const BatchOutput&) = delete;

  const std::string& path() const { return path_; }
  /// The result of the input's line `index` is known.
  bool has(size_t index) const { return index < next_ || held_.contains(index); }
  /// The first line whose result is not written.
  size_t next() const { return next_; }
  size_t done() const { return next_ + held_.size(); }
  /// Results that are no answers, those of earlier runs too.
  size_t failed() const { return failed_; }

  /// `line` without a newline. Throws Failure, OutputClosed; the file is whole then.
  void put(size_t index, std::string line, bool failed);
  /// All is there: on the disk, and nothing beside it.
  void finish();

 private:
  void open(const std::string& path, bool restart);
  void resume();
  void check(size_t index, std::string_view line);
  void resume_ahead();
  void write(int fd, uint64_t& end, const std::string& bytes, const std::string& path);

  const BatchInput& input_;
  std::string path_, ahead_path_;
  int fd_ = -1, ahead_fd_ = -1;
  bool regular_ = false, fresh_ = true;
  uint64_t end_ = 0, ahead_end_ = 0;  // of the whole lines in the files
  size_t next_ = 0, failed_ = 0;
  std::map<size_t, std::string> held_;  // behind next_
};

}  // namespace ellm::cli
