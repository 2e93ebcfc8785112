// The feed-forward network of a mixture of experts: a router picks a few experts for each row, rows are grouped by
// expert, and an expert that no row picked is not read. Owned by the forward pass; run by all workers of a step
// together.
#pragma once
#include <vector>

#include "daemon/model/float_rows.h"
#include "daemon/model/model.h"
#include "daemon/runtime/memory.h"
#include "daemon/runtime/worker_pool.h"
#include "kernels/kernel_set.h"

namespace ellm::model {

class ExpertsPass {
 public:
  /// `max_rows`: token rows of one step.
  ExpertsPass(const ModelConfig& config, const kernels::KernelSet& kernels, uint32_t max_rows);

  /// Adds what the experts give for n rows to `residual`, (n, embedding). Begins and ends behind a barrier.
  void run(runtime::Worker& worker, const Layer& layer, FloatRows residual, uint32_t n);

  /// Bytes of working memory, about.
  static uint64_t bytes(const ModelConfig& config, uint32_t max_rows);

 private:
  /// The rows that one expert works on.
  struct Group {
    const Expert* expert;
    uint32_t first_pair;             // its pairs stand together
    kernels::Activations input;      // (pairs of the group, embedding)
    kernels::Activations activated;  // (pairs of the group, feed_forward of the expert)
  };
  /// A row's place in the work of one of its experts.
  struct Choice {
    uint32_t expert;
    float weight;
    uint32_t pair;
  };

  void route(runtime::Worker& worker, const Layer& layer, FloatRows residual, uint32_t n);
  void choose(uint32_t row);
  void group(const Layer& layer, uint32_t n);
  void pack_inputs(runtime::Worker& worker);
  void gate_and_up(runtime::Worker& worker);
  void down(runtime::Worker& worker);
  void pack(const kernels::PanelMatrix& m, const kernels::Activations& to, uint32_t row, const float* x,
            uint32_t first_block, uint32_t last_block) const;

  const ModelConfig& c_;
  const kernels::KernelSet& k_;
  const uint32_t slots_, widest_;  // experts of a row, with the shared one; the widest expert's feed_forward
  runtime::Region region_;
  // shapes: n rows, pairs = n * slots
  float* normed_ = nullptr;                // (n, embedding)
  float* logits_ = nullptr;                // (n, experts + 1): of the router; the last is the shared expert's gate
  float *gate_ = nullptr, *up_ = nullptr;  // (pairs, widest)
  float* out_ = nullptr;                   // (pairs, embedding)
  std::byte *router_memory_ = nullptr, *input_memory_ = nullptr, *activated_memory_ = nullptr;
  std::vector<Choice> choices_;     // (n, slots), of a row by ascending expert
  std::vector<uint32_t> pair_row_;  // (pairs)
  std::vector<uint32_t> starts_;    // (experts + 2): first pair of each expert
  std::vector<Group> groups_;       // of the experts in use
};

}  // namespace ellm::model
