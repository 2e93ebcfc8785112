// How a command fails: one line on stderr that says what to do, and an exit code after sysexits(3).
#pragma once
#include <span>
#include <stdexcept>
#include <string>

namespace ellm::cli {

enum ExitCode {
  kOk = 0,
  kUsage = 64,        // wrong options or values
  kData = 65,         // wrong contents
  kNoInput = 66,      // no such file, no such model
  kUnavailable = 69,  // no daemon
  kInternal = 70,
  kOutput = 74,    // cannot write
  kBusy = 75,      // again later; a deadline has passed
  kProtocol = 76,  // daemon and program do not understand each other
  kDenied = 77,
  kInterrupted = 130,  // Ctrl-C
  kPipeClosed = 141,   // as a program that SIGPIPE ends
};

/// What manual pages say of them.
struct ExitMeaning {
  int code;
  const char* meaning;
};
std::span<const ExitMeaning> exit_meanings();

class Failure : public std::runtime_error {
 public:
  Failure(ExitCode code, const std::string& message) : std::runtime_error(message), code_(code) {}
  ExitCode code() const { return code_; }

 private:
  ExitCode code_;
};

/// Ends the program quietly with this code.
struct Exit {
  int code;
};

/// Prints the exception that is being handled as "ellm: …" and returns its exit code. To be called in a catch block.
int report_failure();

}  // namespace ellm::cli
