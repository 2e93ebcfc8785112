// The forward pass: a flat list of token rows from many sequences through all layers in one pass. Owned and called by
// the engine thread; works on all workers of the pool.
#pragma once
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "daemon/model/model.h"
#include "daemon/runtime/worker_pool.h"
#include "shm/kv_pages.h"

namespace ellm::model {

/// Rises when any K, V or logits change by a bit: pages of another version are not used any more.
inline constexpr uint32_t kNumericsVersion = 4;

/// A piece of one sequence: `tokens` at consecutive positions from `first_position`. `pages` covers positions 0 up to
/// the last token's; the pages of the piece are written, those before it read.
struct Chunk {
  std::span<const uint32_t> tokens;
  uint32_t first_position = 0;
  std::span<const shm::PageId> pages;
  uint32_t logits = 1;  // how many of the last rows want logits (0 … tokens.size())
};

class ForwardPass {
 public:
  /// `max_rows`: token rows of one step; `max_logits`: rows of logits of one step.
  ForwardPass(std::shared_ptr<const Model> model, const kernels::KernelSet& kernels, runtime::WorkerPool& pool,
              shm::KvPages& kv, uint32_t max_rows, uint32_t max_logits);
  ~ForwardPass();

  /// Runs one step. Chunks of one sequence must not stand twice. Returns the logits rows, (sum of chunk.logits,
  /// vocabulary), in the chunks' order, valid until the next step.
  std::span<const float> step(std::span<const Chunk> chunks);

  /// Where the next steps leave K before RoPE, (layers, rows of the step, kv_heads * head_dim); null: nowhere.
  void record_keys(float* keys);

  /// Bytes of K and V that the last step's attention read; a page that several sequences share counts once.
  uint64_t kv_bytes_read() const;
  uint32_t max_rows() const;
  uint32_t max_logits() const;
  uint32_t vocabulary() const;

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

/// The kernel level for this CPU: "auto", "scalar", "avx2", "avx512", "amx". Throws std::runtime_error that says what
/// is missing.
const kernels::KernelSet& choose_kernels(const std::string& name);

}  // namespace ellm::model
