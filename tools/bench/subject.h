// Our engine on one model and one KV type: the forward pass without daemon, sampling or sockets. One thread, worker 0
// of the pool.
#pragma once
#include <memory>
#include <span>
#include <vector>

#include "daemon/model/forward.h"
#include "shm/kv_pages.h"
#include "tools/bench/work.h"

namespace ellm::bench {

struct Measured {
  double seconds;
  uint64_t kv_bytes_read;  // by attention, as the engine counts them
  uint64_t kv_bytes_held;  // of all sequences at the end
};

class Subject {
 public:
  /// Takes the memory that the largest of `works` needs. Throws std::runtime_error where there is less.
  Subject(std::shared_ptr<const model::Model> model, const kernels::KernelSet& kernels, runtime::WorkerPool& pool,
          shm::KvTypes kv, std::span<const Work> works, Fill fill);

  /// The work, without what stands before it.
  Measured run(const Work& work);

  /// Pages of KV that the work takes.
  static uint32_t pages(const Work& work);

 private:
  struct Sequence {
    std::vector<shm::PageId> pages;
    uint32_t length = 0, seed = 0;  // of its tokens
    size_t shared = 0;              // pages that are another's
  };
  void grow(Sequence& s, uint32_t tokens);
  void run_step(std::span<const model::Chunk> chunks);
  void feed(std::span<Sequence> sequences, uint32_t tokens, bool logits);
  Sequence begin(uint32_t depth, uint32_t seed);
  Sequence begin_behind(const Sequence& prefix, uint32_t seed);
  void generate(std::span<Sequence> sequences, uint32_t steps);
  void end(Sequence& s);
  uint32_t token(uint32_t seed, uint32_t position) const;

  std::shared_ptr<const model::Model> model_;
  std::unique_ptr<shm::KvPages> kv_;
  std::unique_ptr<model::ForwardPass> forward_;
  Fill fill_;
  Sequence original_;  // that copies are of
  uint64_t kv_bytes_read_ = 0;
};

}  // namespace ellm::bench
