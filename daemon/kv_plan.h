// How much memory a model's keys and values get, and whether the model fits at all. Pure.
#pragma once
#include <cstdint>
#include <string>

#include "daemon/config.h"
#include "shm/geometry.h"

namespace ellm::daemon {

struct MemoryNeeds {
  uint64_t available_bytes = 0;  // before anything is loaded
  uint64_t weight_bytes = 0, work_bytes = 0;
  shm::PageGeometry geometry;
  uint32_t trained_context = 0;
};

struct KvPlan {
  uint64_t tokens = 0;                         // that the pages hold
  uint64_t least_tokens = 0, most_tokens = 0;  // of pages that an earlier process left, to be used as they are
  uint32_t context = 0;                        // of one request
};

/// Throws model::LoadError with the sum where weights, work memory and the least useful KV exceed what is available.
KvPlan plan_kv(const std::string& name, const Config& config, const MemoryNeeds& needs);

/// "1.4 GB", "320 MB"
std::string human_bytes(uint64_t bytes);

}  // namespace ellm::daemon
