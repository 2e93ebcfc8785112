// Finds stop strings in a stream of text pieces, across their borders. Pure state of one request; I/O thread.
#pragma once
#include <string>
#include <string_view>
#include <vector>

namespace ellm::daemon {

class StopFinder {
 public:
  /// No stop string may be empty.
  explicit StopFinder(std::vector<std::string> stops);

  struct Piece {
    std::string text;      // that cannot be part of a stop string any more, or stands before it
    bool stopped = false;  // a stop string is complete: what follows is not wanted
  };
  /// The result does not depend on how the text was cut: the stop string that is complete first wins, the longest of
  /// those that end together.
  Piece push(std::string_view text);
  /// The text held back so far, at the end without a stop string.
  std::string finish();

 private:
  std::vector<std::string> stops_;
  size_t longest_ = 0;
  std::string held_;  // a prefix of some stop string, or empty
};

}  // namespace ellm::daemon
