// What a KV type costs in quality: the same text through the same model with each type, beside f16.
#pragma once
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "daemon/model/model.h"
#include "daemon/runtime/worker_pool.h"
#include "shm/geometry.h"

namespace ellm::eval {

struct KvResult {
  std::string type;  // "int8", "int8:f16"
  double bytes_per_token;
  double perplexity;
  double kl_mean,
      kl_999;  // of f16's distribution from this one's, by position: the mean, and what 99.9 % do not exceed
};

/// The types in turn, f16 first. Means are taken from position 8 on: the first tokens of some models are unlike all
/// others. Throws std::runtime_error.
std::vector<KvResult> evaluate_kv(const std::shared_ptr<const model::Model>& model, runtime::WorkerPool& pool,
                                  const std::string& kernels, std::span<const uint32_t> tokens,
                                  const std::vector<shm::KvTypes>& types);

}  // namespace ellm::eval
