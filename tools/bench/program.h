// Runs another program and waits for it.
#pragma once
#include <string>
#include <vector>

namespace ellm::bench {

/// Remembers the CPUs that this process may use: the worker pool pins the calling thread later, and children would
/// inherit that.
void remember_affinity();

/// What the program wrote to stdout. Throws std::runtime_error with the end of its stderr where it cannot be started or
/// fails.
std::string run_program(const std::vector<std::string>& command);

}  // namespace ellm::bench
