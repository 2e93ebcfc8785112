// The memory in which daemons of this user that have ended keep the prefixes that they computed and the weights that
// they repacked.
#pragma once
#include <cstdint>

namespace ellm::cli {

struct Dropped {
  uint64_t segments = 0, bytes = 0;
  uint64_t in_use = 0;  // by a daemon that runs: they stay
};
/// Prefixes, and weights if wanted. Throws Failure.
Dropped drop_segments(bool weights);

}  // namespace ellm::cli
