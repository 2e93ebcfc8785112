// One region for everything that a step writes: a first pass adds the sizes up, a second hands out the places.
#include "daemon/model/step_buffers.h"

#include <algorithm>

#include "kernels/kv_block.h"
#include "kernels/panel.h"

namespace ellm::model {
namespace {

constexpr size_t kAlign = 256;
size_t aligned(size_t bytes) { return (bytes + kAlign - 1) / kAlign * kAlign; }

/// With base null it only counts.
class Arena {
 public:
  explicit Arena(std::byte* base) : base_(base) {}
  std::byte* take(size_t bytes) {
    std::byte* at = base_ == nullptr ? nullptr : base_ + used_;
    used_ += aligned(bytes);
    return at;
  }
  float* floats(size_t n) { return reinterpret_cast<float*>(take(n * sizeof(float))); }
  FloatRows rows(size_t n, size_t columns) {
    const size_t stride = FloatRows::stride_of(columns);
    return {floats(n * stride), stride};
  }
  size_t used() const { return used_; }

 private:
  std::byte* base_;
  size_t used_ = 0;
};

void layout(StepBuffers& b, Arena& arena, const ModelConfig& c, uint32_t rows, uint32_t logits, uint32_t workers) {
  const uint32_t q_dim = c.heads * c.head_dim, kv_dim = c.kv_heads * c.head_dim;
  b.residual = arena.rows(rows, c.embedding);
  b.qkv = arena.rows(rows, q_dim + 2 * kv_dim);
  b.attended = arena.floats(size_t{rows} * q_dim);
  const uint32_t feed_forward = c.experts == 0 ? c.feed_forward : 0;  // experts have buffers of their own
  const uint32_t gate_columns = std::min(feed_forward, StepBuffers::kGatePanels * kernels::kPanelRows);
  for (FloatRows& gate : b.gate) gate = arena.rows(rows, gate_columns);
  for (FloatRows& up : b.up) up = arena.rows(rows, gate_columns);
  b.cos = arena.floats(size_t{rows} * std::max(1u, c.rope.dimensions / 2));
  b.sin = arena.floats(size_t{rows} * std::max(1u, c.rope.dimensions / 2));
  const uint32_t window_pairs = c.window_rope ? c.window_rope->dimensions / 2 : 0;
  b.window_cos = arena.floats(size_t{rows} * window_pairs);
  b.window_sin = arena.floats(size_t{rows} * window_pairs);
  b.branch = arena.rows(rows, c.embedding);
  b.logits = arena.floats(size_t{logits} * c.vocabulary);
  b.norm_scratch = arena.floats(size_t{workers} * c.embedding);
  b.partials = arena.floats(b.partial_results * kernels::attention_partial_floats(c.head_dim));
  const auto packed = [&](PackedInput& input, uint32_t cols) {
    std::byte* at = arena.take(PackedInput::bytes(rows, cols, workers));
    if (at != nullptr) input.place(at, rows, cols);
  };
  packed(b.normed, c.embedding);
  packed(b.attention_out, q_dim);
  packed(b.attention_rest, q_dim);
  packed(b.activated, feed_forward);
}

}  // namespace

size_t PackedInput::bytes(uint32_t max_rows, uint32_t cols, uint32_t workers) {
  return aligned(kernels::Activations::bytes(max_rows, cols)) +
         workers * aligned(kernels::Activations::bytes(kPrivateRows, cols));
}

void PackedInput::place(std::byte* memory, uint32_t max_rows, uint32_t cols) {
  cols_ = cols;
  shared_ = memory;
  private_ = memory + aligned(kernels::Activations::bytes(max_rows, cols));
  private_bytes_ = aligned(kernels::Activations::bytes(kPrivateRows, cols));
}

StepBuffers::StepBuffers(const ModelConfig& config, uint32_t max_context, uint32_t max_rows, uint32_t max_logits,
                         uint32_t workers)
    : gate(workers), up(workers) {
  // Room for the longest contexts of a few chunks, and for many that share a prefix of up to 16K tokens.
  const uint32_t segments = max_context / kernels::kAttentionSegment + 1;
  const size_t contexts = std::max(size_t{4} * segments, size_t{std::min(max_rows, 32u)} * std::min(segments, 33u));
  partial_results = contexts * config.heads;
  Arena count(nullptr);
  layout(*this, count, config, max_rows, max_logits, workers);
  region_ = runtime::Region::map(count.used(), {});
  Arena place(region_.data());
  layout(*this, place, config, max_rows, max_logits, workers);
}

}  // namespace ellm::model
