// The pieces of a step's attention, in the order in which the workers take them: planned once a step by the engine
// thread, the same for all layers. What goes together never changes what is computed (HACKING.md, fixed-order rule).
#pragma once
#include <cstdint>
#include <span>
#include <vector>

#include "daemon/model/config.h"
#include "daemon/model/forward.h"
#include "shm/geometry.h"

namespace ellm::model {

/// One KV head with
///   segment == kWholeContext: rows [first_row, first_row + rows) of chunk `chunk`, all of their context;
///   else: one segment of the context of single-row chunks, order()[chunk … chunk + rows), which share its first page.
struct AttentionItem {
  static constexpr uint32_t kWholeContext = UINT32_MAX;
  uint32_t chunk, kv_head, first_row, rows, segment;
  bool whole() const { return segment == kWholeContext; }
};

class AttentionPlan {
 public:
  static constexpr uint32_t kStackRows = 32;  // chunks of one item
  /// `partial_results`: how many results of one query head and segment can be kept until they are merged.
  AttentionPlan(const ModelConfig& config, const shm::PageGeometry& geometry, uint32_t max_context, uint32_t max_rows,
                uint32_t workers, size_t partial_results);

  /// Allocates nothing.
  void make(std::span<const Chunk> chunks);

  std::span<const AttentionItem> items() const { return items_; }
  /// Single-row chunks by their pages: those that share a beginning stand side by side.
  std::span<const uint32_t> order() const { return order_; }
  /// Chunks (not places in the order) whose segments must be merged: one item for each KV head; `segment` is how many.
  std::span<const AttentionItem> merges() const { return merges_; }
  /// Where a merged chunk's partial results begin, (kv_heads, segments, group).
  size_t partial_begin(uint32_t chunk) const { return partial_begin_[chunk]; }
  /// Bytes of K and V that the step reads in all layers; a page that an item's rows share is read once.
  uint64_t kv_bytes() const { return kv_bytes_; }

 private:
  void sort_singles();
  bool cut_contexts() const;
  void choose_partial(bool all);
  void add_segments(uint32_t segment);
  void count_bytes();

  const ModelConfig& c_;
  const uint32_t workers_;
  const size_t partial_results_;
  uint64_t page_bytes_[2] = {};  // of all layers without a window, of all with one
  std::span<const Chunk> chunks_;
  std::vector<AttentionItem> items_, merges_;
  std::vector<uint32_t> order_, common_;  // common_[i]: pages that order_[i] shares with the one before it
  std::vector<size_t> partial_begin_;     // per chunk
  std::vector<bool> partial_;             // per place in the order
  uint64_t kv_bytes_ = 0;
};

}  // namespace ellm::model
