// The kernel levels: one table row each, chosen at run time. The scalar level is the specification; every other level
// equals it to the bit (HACKING.md, "The fixed-order rule"). All functions are pure: no state, no threads, no
// allocation.
#pragma once
#include "kernels/activations.h"
#include "kernels/key_mean.h"
#include "kernels/kv_block.h"
#include "kernels/panel.h"

namespace ellm::kernels {

enum class Level : uint8_t { scalar, avx2, avx512, amx };  // each has what those before it have

/// out[t * out_stride + r] = dot(w row r, x row t) (+ bias[r]) (+ the value that was there) for the rows r of panels
/// [first_panel, last_panel) and every row t of x. Only rows < w.rows are written.
struct MatmulArgs {
  PanelMatrix w;  // (rows, cols)
  Activations x;  // (tokens, cols)
  uint32_t first_panel, last_panel;
  float* out;  // (tokens, out_stride)
  size_t out_stride;
  const float* bias = nullptr;  // (rows) or null
  bool accumulate = false;      // add to out: the residual stream
};

/// A row of a stack of rows that are of several sequences.
struct StackedRow {
  const float* q;  // head h at q + h * head_dim
  uint32_t position;
  float* partials;  // as row 0 of attention_partial's
};

/// One sequence's attention for one KV head: query rows at consecutive positions, each with `group` query heads.
/// Row i, at position p = first_position + i, sees the KV tokens at positions 0 … p; with a window, the last `window` of them.
struct AttentionArgs {
  const float* q;  // row i, head h at q + i * q_stride + h * head_dim, RoPE applied
  size_t q_stride;
  float* out;  // row i, head h at out + i * out_stride + h * head_dim
  size_t out_stride;
  uint32_t rows, group, head_dim;
  uint32_t first_position;
  float scale;  // 1 / sqrt(head_dim), usually
  KvType k_type, v_type;
  const std::byte* const* k_blocks;  // one per page: the layer's and head's K block (kv_block.h)
  const std::byte* const* v_blocks;  // pages before the window of the first row are not read
  /// For attention_partial: rows of several sequences, instead of q, out and first_position. Row i's blocks of the
  /// segment's pages begin at k_blocks + i * stack_pages, null behind its context. A page that neighbours share is read
  /// once for all of them.
  const StackedRow* stack = nullptr;
  uint32_t stack_pages = 0;
  uint32_t window = 0;                // 0: none
  float soft_cap = 0;                 // a score s becomes soft_cap * tanh(s / soft_cap); 0: it stays
  const KeyMean* key_mean = nullptr;  // what store_k was given K without; int8 and int4 only; null: nothing
};

struct KernelSet {
  const char* name;
  Level level;

  /// The product of MatmulArgs. No scratch memory but the stack.
  void (*matmul)(const MatmulArgs& args) noexcept;

  /// Packs columns [32 * first_block, 32 * last_block) of row `row`; x points at the first of these.
  void (*pack_q8)(const Activations& dst, uint32_t row, const float* x, uint32_t first_block,
                  uint32_t last_block) noexcept;
  void (*pack_f32)(const Activations& dst, uint32_t row, const float* x, uint32_t first_block,
                   uint32_t last_block) noexcept;

  /// Whole attention: segments of kAttentionSegment tokens in order, merged in order. About 500 KB of stack;
  /// head_dim up to kMaxHeadDim. q and out may not overlap.
  void (*attention)(const AttentionArgs& args) noexcept;
  /// The same in two steps, so that several threads can share one long context: the partial result of one segment for
  /// all rows and heads at partials + ((i * segments + segment) * group + h) * attention_partial_floats(head_dim), then
  /// the merge of a row range. Rows that end before the segment, or whose window begins behind it, have no partial
  /// result of it: none is written or read. Equal to `attention` to the bit.
  void (*attention_partial)(const AttentionArgs& args, uint32_t segment, uint32_t segments, float* partials) noexcept;
  void (*attention_merge)(const AttentionArgs& args, uint32_t first_row, uint32_t last_row, uint32_t segments,
                          const float* partials) noexcept;

  /// One token's K (int8, int4: without remove_key_mean's part) or V, head_dim floats, into slot `slot` of a block.
  void (*store_k)(KvType type, uint32_t head_dim, const float* k, std::byte* block, uint32_t slot) noexcept;
  void (*store_v)(KvType type, uint32_t head_dim, const float* v, std::byte* block, uint32_t slot) noexcept;

  /// k -= what K of the token at `position` is stored without, RoPE applied.
  void (*remove_key_mean)(const KeyMean& mean, uint32_t head_dim, uint32_t position, float* k) noexcept;

  /// out = x / sqrt(mean(x^2) + eps) * weight
  void (*rms_norm)(const float* x, const float* weight, uint32_t n, float eps, float* out) noexcept;
  /// Rotates the first 2 * half values of a head in place. neox: pairs (i, i + half); else pairs (2i, 2i + 1).
  void (*rope)(float* head, const float* cos, const float* sin, uint32_t half, bool neox) noexcept;
  /// out = silu(gate) * up
  void (*silu_mul)(const float* gate, const float* up, uint32_t n, float* out) noexcept;
  /// out = gelu(gate) * up, gelu in its form with tanh
  void (*gelu_mul)(const float* gate, const float* up, uint32_t n, float* out) noexcept;
  /// x = cap * tanh(x / cap), in place
  void (*soft_cap)(float* x, uint32_t n, float cap) noexcept;
  /// The largest value's index, the lowest of equals; NaN counts as -infinity; 0 if nothing else.
  uint32_t (*argmax)(const float* x, uint32_t n) noexcept;
  /// log(sum(exp(x_i))), in a fixed tree.
  float (*log_sum_exp)(const float* x, uint32_t n) noexcept;
  /// The same of (x_i - peak) / temperature, NaN as -infinity; peak is the largest value and finite.
  float (*tempered_log_sum_exp)(const float* x, uint32_t n, float peak, float temperature) noexcept;
};

/// All levels, best first. A level is listed whether or not this CPU has it: the caller checks the CPU.
const KernelSet* kernel_set(Level level) noexcept;

/// cos and sin of position * frequency[i], computed in double by our own polynomials: equal on every machine.
void rope_angles(double position, const double* frequency, uint32_t n, float magnitude, float* cos,
                 float* sin) noexcept;

}  // namespace ellm::kernels
