// A model with everything a step needs, without daemon, engine or sampling: token ids in, logits out. For the tests and
// the programs that judge models. One thread at a time.
#pragma once
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "daemon/model/forward.h"
#include "daemon/model/model.h"
#include "daemon/runtime/worker_pool.h"
#include "shm/kv_pages.h"

namespace ellm::tools {

struct RunnerOptions {
  std::string kernels = "auto";
  uint32_t threads = 2;
  shm::KvTypes kv_type = shm::KvType::f16;
  uint32_t pages = 64;
  uint32_t max_rows = 512;  // of a step, all with logits
};

class ModelRunner {
 public:
  ModelRunner(std::shared_ptr<const model::Model> model, const RunnerOptions& options);
  /// With a level that the machine need not have.
  ModelRunner(std::shared_ptr<const model::Model> model, const RunnerOptions& options,
              const kernels::KernelSet& kernels);
  /// On a pool that several runners share (`threads` counts for nothing), one step at a time.
  ModelRunner(std::shared_ptr<const model::Model> model, const RunnerOptions& options, runtime::WorkerPool& pool);

  /// One sequence's pages and length; pages are taken as it grows.
  struct Sequence {
    std::vector<shm::PageId> pages;
    uint32_t length = 0;
  };
  struct Feed {
    Sequence* sequence;
    std::span<const uint32_t> tokens;
    uint32_t logits;  // of the last rows
  };

  /// One step over several sequences: logits rows in order, (sum of logits, vocabulary), valid until the next step.
  std::span<const float> step(std::span<const Feed> feeds);
  std::span<const float> step(const Feed& feed) { return step({&feed, 1}); }
  /// All logits of a text, fed in chunks of at most `chunk` tokens to a fresh sequence; (tokens, vocabulary).
  std::vector<float> logits(std::span<const uint32_t> tokens, uint32_t chunk = 512);
  /// Greedy continuation.
  std::vector<uint32_t> greedy(std::span<const uint32_t> prompt, uint32_t count);
  void release(Sequence& sequence);

  uint64_t kv_bytes_read() const { return forward_->kv_bytes_read(); }
  uint32_t vocabulary() const { return forward_->vocabulary(); }
  const model::Model& model() const { return *model_; }
  const kernels::KernelSet& kernels() const { return kernels_; }
  shm::KvPages& kv() { return *kv_; }

 private:
  ModelRunner(std::shared_ptr<const model::Model> model, const RunnerOptions& options,
              const kernels::KernelSet& kernels, runtime::WorkerPool* shared);

  std::shared_ptr<const model::Model> model_;
  const kernels::KernelSet& kernels_;
  std::optional<runtime::WorkerPool> own_pool_;
  std::unique_ptr<shm::KvPages> kv_;
  std::unique_ptr<model::ForwardPass> forward_;
};

}  // namespace ellm::tools
