// Ctrl-C while a request runs: the first one asks to cancel, the second ends the program.
#pragma once

namespace ellm::cli {

/// While it lives, SIGINT is counted instead of ending the program.
class InterruptGuard {
 public:
  /// `insist`: a second SIGINT ends the program at once (exit code 130).
  explicit InterruptGuard(bool insist = true);
  ~InterruptGuard();
  InterruptGuard(const InterruptGuard&) = delete;
  InterruptGuard& operator=(const InterruptGuard&) = delete;
};

/// SIGINT has come since the last clear_interrupt().
bool interrupted();
void clear_interrupt();

}  // namespace ellm::cli
