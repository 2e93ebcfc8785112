// A model with everything a step needs, for tests: runs token ids through the forward pass and hands back logits.
#pragma once
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "daemon/model/forward.h"
#include "daemon/model/model.h"
#include "daemon/runtime/worker_pool.h"
#include "shm/kv_pages.h"
#include "tests/support/real_models.h"

namespace ellm::tests {

struct RunnerOptions {
  std::string kernels = "auto";
  uint32_t threads = 2;
  shm::KvTypes kv_type = shm::KvType::f16;
  uint32_t pages = 64;
  uint32_t max_rows = 512;
};

class ModelRunner {
 public:
  ModelRunner(std::shared_ptr<const model::Model> model, const RunnerOptions& options);
  ModelRunner(std::shared_ptr<const model::Model> model, const RunnerOptions& options, const kernels::KernelSet& kernels);

  /// One sequence's pages and length; pages are taken as it grows.
  struct Sequence {
    std::vector<shm::PageId> pages;
    uint32_t length = 0;
  };
  struct Feed {
    Sequence* sequence;
    std::vector<uint32_t> tokens;
    uint32_t logits;              // of the last rows
  };

  /// One step over several sequences: logits rows in order, (sum of logits, vocabulary).
  std::vector<float> step(const std::vector<Feed>& feeds);
  /// All logits of a text, fed in chunks of `chunk` tokens to a fresh sequence; (tokens, vocabulary).
  std::vector<float> logits(std::span<const uint32_t> tokens, uint32_t chunk);
  /// Greedy continuation.
  std::vector<uint32_t> greedy(std::span<const uint32_t> prompt, uint32_t count);
  void release(Sequence& sequence);

  uint32_t vocabulary() const { return forward_->vocabulary(); }
  const model::Model& model() const { return *model_; }
  const kernels::KernelSet& kernels() const { return kernels_; }
  shm::KvPages& kv() { return *kv_; }

 private:
  std::shared_ptr<const model::Model> model_;
  const kernels::KernelSet& kernels_;
  runtime::WorkerPool pool_;
  std::unique_ptr<shm::KvPages> kv_;
  std::unique_ptr<model::ForwardPass> forward_;
};

/// Loads a model without locking memory.
std::shared_ptr<const model::Model> load_model(const std::string& path, bool key_means = false);

}  // namespace ellm::tests
