// How a pull fails: one line that says what to do, and an exit code after sysexits(3).
#pragma once
#include <sysexits.h>

#include <stdexcept>
#include <string>

namespace ellm::pull {

inline constexpr int kInterrupted = 130;  // Ctrl-C, as a shell reports it

class PullError : public std::runtime_error {
 public:
  PullError(int exit_code, const std::string& message) : std::runtime_error(message), exit_code_(exit_code) {}
  int exit_code() const { return exit_code_; }

 private:
  int exit_code_;
};

}  // namespace ellm::pull
