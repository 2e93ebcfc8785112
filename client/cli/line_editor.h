// Reads lines: with editing and history (libedit) on a terminal, plainly elsewhere.
#pragma once
#include <memory>
#include <string>

namespace ellm::cli {

class LineEditor {
 public:
  /// `history_path` empty: no history is kept.
  explicit LineEditor(const std::string& history_path);
  ~LineEditor();
  LineEditor(const LineEditor&) = delete;
  LineEditor& operator=(const LineEditor&) = delete;

  enum class Result { line, interrupted, end };
  /// One message without its last newline. A line that ends in a backslash, and a pasted one, go on in the next.
  Result read(std::string& text);

 private:
  struct Terminal;
  Result read_one(const char* prompt, std::string& line);
  std::unique_ptr<Terminal> terminal_;  // null where stdin is none
};

/// $XDG_STATE_HOME/ellm/history, else ~/.local/state/ellm/history, its directory made; empty where there is no home.
std::string history_path();

}  // namespace ellm::cli
