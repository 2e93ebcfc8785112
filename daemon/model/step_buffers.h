// The working memory of one step: the residual stream, the packed inputs of the matrix products, and what lies between.
// Sized once for the largest step; owned by the forward pass, written by the workers.
#pragma once
#include <vector>

#include "daemon/model/config.h"
#include "daemon/model/float_rows.h"
#include "daemon/runtime/memory.h"
#include "kernels/activations.h"

namespace ellm::model {

/// The packed input of a matrix product: one for all workers, and a small private one for each worker. With few rows
/// every worker packs its own copy, which costs less than the barrier that a shared copy needs.
class PackedInput {
 public:
  static constexpr uint32_t kPrivateRows = 2;

  static size_t bytes(uint32_t max_rows, uint32_t cols, uint32_t workers);
  void place(std::byte* memory, uint32_t max_rows, uint32_t cols);
  kernels::Activations shared(uint32_t rows) const { return kernels::Activations::bind(shared_, rows, cols_); }
  kernels::Activations of_worker(uint32_t worker, uint32_t rows) const {
    return kernels::Activations::bind(private_ + worker * private_bytes_, rows, cols_);
  }

 private:
  std::byte *shared_ = nullptr, *private_ = nullptr;
  size_t private_bytes_ = 0;
  uint32_t cols_ = 0;
};

struct StepBuffers {
  StepBuffers(const ModelConfig& config, uint32_t max_context, uint32_t max_rows, uint32_t max_logits,
              uint32_t workers);

  // shapes: n is the step's number of rows
  FloatRows residual;         // (n, embedding)
  FloatRows qkv;              // (n, q | k | v)
  FloatRows branch;           // (n, embedding): what a norm changes before it joins the residual stream
  float* attended = nullptr;  // (n, heads * head_dim)
  /// Of each worker, (n, 16 * kGatePanels): so few columns at a time that they are still cached (1 MB for 512 rows)
  /// when they are packed.
  static constexpr uint32_t kGatePanels = 16;
  std::vector<FloatRows> gate, up;
  float* cos = nullptr;  // (n, rope.dimensions / 2)
  float* sin = nullptr;
  float* window_cos = nullptr;  // the same for layers with a sliding window, where their RoPE differs
  float* window_sin = nullptr;
  float* logits = nullptr;        // (wanted, vocabulary)
  float* norm_scratch = nullptr;  // (workers, embedding)
  float* partials = nullptr;      // results of attention segments: of query heads of single-row chunks
  size_t partial_results = 0;
  PackedInput normed;          // (n, embedding): input of q, k, v; of gate, up; of the output head
  PackedInput attention_out;   // (n, heads * head_dim)
  PackedInput attention_rest;  // (n, heads * head_dim): what the quantisation of attention_out left
  PackedInput activated;       // (n, feed_forward)

 private:
  runtime::Region region_;
};

}  // namespace ellm::model
