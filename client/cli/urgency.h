// The options of what is asked of the daemon that say how soon it is wanted: --priority and --deadline.
#pragma once
#include <string>

#include "client/cli/command_line.h"
#include "client/cli/failure.h"

namespace ellm::cli {

class UrgencyOptions {
 public:
  explicit UrgencyOptions(CommandLine& line, client::Priority usual = client::Priority::interactive);

  CLI::Option* deadline() { return deadline_given_; }
  /// After parsing: to a request that is to be sent.
  template <class Request>
  void apply(Request& request) const {
    request.priority = priority_ == "batch" ? client::Priority::batch : client::Priority::interactive;
    request.deadline_ms = deadline_ms();
  }
  /// "the deadline of 10 s has passed: the answer is not complete"
  std::string passed() const { return "the deadline of " + deadline_ + " s has passed: the answer is not complete"; }

 private:
  uint32_t deadline_ms() const;

  std::string priority_, deadline_;
  CLI::Option* deadline_given_;
};

}  // namespace ellm::cli
