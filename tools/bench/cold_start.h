// How long a model takes to be ready, beside the least that could take: copying its file out of the page cache.
#pragma once
#include <string>

#include "daemon/runtime/worker_pool.h"

namespace ellm::bench {

/// Seconds of copying a file into a fresh memfd, in huge pages where weights are, on all workers. Throws
/// std::system_error.
double time_copy(const std::string& path, runtime::WorkerPool& pool);

}  // namespace ellm::bench
