// The command line of ellmd.
#pragma once
#include <string>

#include "daemon/config.h"

namespace ellm::daemon {

struct Options {
  Config config;            // defaults, then the file, then the command line
  std::string config_file;  // that was read; empty: none
  bool print_config = false, check_config = false;
};

/// Prints help, version or a usage error and exits where these are asked for (64 for a wrong command line). Throws
/// ConfigError.
Options read_options(int argc, char** argv);

}  // namespace ellm::daemon
