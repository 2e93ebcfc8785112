// The options of `ellm run` and `ellm chat` that become Sampling.
#pragma once
#include <string>
#include <vector>

#include "client/cli/command_line.h"

namespace ellm::cli {

class SamplingOptions {
 public:
  explicit SamplingOptions(CommandLine& line);
  /// After parsing. Throws Failure (usage) on a malformed --logit-bias.
  client::Sampling get() const;

 private:
  CommandLine& line_;
  client::Sampling sampling_;
  std::vector<std::string> logit_bias_;
};

}  // namespace ellm::cli
