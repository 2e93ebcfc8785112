// See attention_plan.h.
#include "daemon/model/attention_plan.h"

#include <algorithm>

#include "kernels/kv_block.h"

namespace ellm::model {
namespace {

constexpr uint32_t kRowBlock = 16;    // query rows of one item
constexpr uint32_t kSplitChunks = 4;  // so few contexts may be cut to keep the workers busy
constexpr uint32_t kSharedPages = 8;  // pages in common that are worth a merge

using kernels::kAttentionSegment;
using kernels::kSegmentPages;

uint32_t pages_of(const Chunk& chunk) { return chunk.first_position / shm::kPageTokens + 1; }
uint32_t segments_of(const Chunk& chunk) { return chunk.first_position / kAttentionSegment + 1; }

/// Pages that two sequences have in common: equal page numbers mean equal tokens up to there, so the first that
/// differs ends them.
uint32_t common_pages(const Chunk& a, const Chunk& b) {
  uint32_t from = 0, to = std::min(pages_of(a), pages_of(b));
  while (from < to) {
    const uint32_t middle = (from + to) / 2;
    if (a.pages[middle] == b.pages[middle]) from = middle + 1;
    else to = middle;
  }
  return from;
}

}  // namespace

AttentionPlan::AttentionPlan(const ModelConfig& config, const shm::PageGeometry& geometry, uint32_t max_context,
                             uint32_t max_rows, uint32_t workers, size_t partial_results)
    : c_(config), workers_(workers), partial_results_(partial_results) {
  const auto k = static_cast<kernels::KvType>(geometry.k_type), v = static_cast<kernels::KvType>(geometry.v_type);
  const size_t read = kernels::k_block_bytes(k, c_.head_dim) - kernels::kv_rest_bytes(k, c_.head_dim) +
                      kernels::v_block_bytes(v, c_.head_dim) - kernels::kv_rest_bytes(v, c_.head_dim);
  for (uint32_t layer = 0; layer < c_.layers; ++layer) page_bytes_[c_.windowed(layer) ? 1 : 0] += read;
  const size_t segments = max_context / kAttentionSegment + 1;
  items_.reserve(size_t{max_rows} * c_.kv_heads +
                 std::min(partial_results / c_.heads, max_rows * segments) * c_.kv_heads);
  merges_.reserve(size_t{max_rows} * c_.kv_heads);
  order_.reserve(max_rows);
  common_.reserve(max_rows);
  partial_begin_.reserve(max_rows);
  partial_.reserve(max_rows);
}

void AttentionPlan::make(std::span<const Chunk> chunks) {
  chunks_ = chunks;
  items_.clear();
  merges_.clear();
  sort_singles();
  choose_partial(cut_contexts());
  uint32_t segments = 0;
  for (uint32_t i = 0; i < order_.size(); ++i) {
    const Chunk& chunk = chunks_[order_[i]];
    for (uint32_t head = 0; head < c_.kv_heads; ++head) {
      if (partial_[i]) {
        merges_.push_back({order_[i], head, 0, 1, segments_of(chunk)});
      } else {
        items_.push_back({order_[i], head, 0, 1, AttentionItem::kWholeContext});
      }
    }
    if (partial_[i]) segments = std::max(segments, segments_of(chunk));
  }
  for (uint32_t s = 0; s < segments; ++s) add_segments(s);
  for (uint32_t i = 0; i < chunks_.size(); ++i) {
    const auto count = static_cast<uint32_t>(chunks_[i].tokens.size());
    for (uint32_t head = 0; count > 1 && head < c_.kv_heads; ++head) {
      for (uint32_t first = 0; first < count; first += kRowBlock) {
        items_.push_back({i, head, first, std::min(kRowBlock, count - first), AttentionItem::kWholeContext});
      }
    }
  }
  const auto cost = [&](const AttentionItem& a) {  // the costliest first
    return uint64_t{a.rows} * (a.whole() ? chunks_[a.chunk].first_position + a.first_row + a.rows : kAttentionSegment);
  };
  std::ranges::stable_sort(items_, [&](const auto& a, const auto& z) { return cost(a) > cost(z); });
  count_bytes();
}

void AttentionPlan::sort_singles() {
  order_.clear();
  common_.clear();
  for (uint32_t i = 0; i < chunks_.size(); ++i) {
    if (chunks_[i].tokens.size() == 1) order_.push_back(i);
  }
  std::ranges::sort(order_, [&](uint32_t i, uint32_t j) {
    const Chunk &a = chunks_[i], &b = chunks_[j];
    const uint32_t common = common_pages(a, b), least = std::min(pages_of(a), pages_of(b));
    if (common < least) return a.pages[common] < b.pages[common];
    return pages_of(a) != pages_of(b) ? pages_of(a) < pages_of(b) : i < j;
  });
  for (size_t i = 0; i < order_.size(); ++i) {
    common_.push_back(i == 0 ? 0 : common_pages(chunks_[order_[i - 1]], chunks_[order_[i]]));
  }
}

/// Long contexts are cut into segments where there are too few heads to keep the workers busy. Of a single context they
/// are alike: where each worker gets as many, it stays whole, and memory is asked for the next segment in time.
bool AttentionPlan::cut_contexts() const {
  const bool even = chunks_.size() == 1 && c_.kv_heads % workers_ == 0;
  return !even && order_.size() == chunks_.size() && chunks_.size() <= kSplitChunks &&
         chunks_.size() * c_.kv_heads < 3 * workers_ &&
         std::ranges::any_of(chunks_, [](const Chunk& chunk) { return chunk.first_position >= 2 * kAttentionSegment; });
}

/// `all`, or those that share pages with a neighbour: as many as there is room for results.
void AttentionPlan::choose_partial(bool all) {
  partial_.assign(order_.size(), false);
  partial_begin_.assign(chunks_.size(), 0);
  size_t used = 0;
  for (size_t i = 0; i < order_.size(); ++i) {
    const bool shares = common_[i] >= kSharedPages || (i + 1 < order_.size() && common_[i + 1] >= kSharedPages);
    const size_t results = size_t{segments_of(chunks_[order_[i]])} * c_.heads;
    if (!(all || shares) || used + results > partial_results_) continue;
    partial_[i] = true;
    partial_begin_[order_[i]] = used;
    used += results;
  }
}

/// A segment of all partial chunks that have it: neighbours that share its first page are one item.
void AttentionPlan::add_segments(uint32_t segment) {
  const auto has = [&](size_t i) { return partial_[i] && segment < segments_of(chunks_[order_[i]]); };
  for (uint32_t i = 0; i < order_.size();) {
    if (!has(i)) {
      ++i;
      continue;
    }
    uint32_t end = i + 1;
    while (end < order_.size() && end - i < kStackRows && has(end) && common_[end] > segment * kSegmentPages) ++end;
    for (uint32_t head = 0; head < c_.kv_heads; ++head) items_.push_back({i, head, 0, end - i, segment});
    i = end;
  }
}

void AttentionPlan::count_bytes() {
  kv_bytes_ = 0;
  const auto add = [&](uint32_t position, uint32_t from, uint32_t to) {  // of the first row; pages [from, to)
    const uint32_t window = c_.window != 0 && position >= c_.window ? (position + 1 - c_.window) / shm::kPageTokens : 0;
    kv_bytes_ += page_bytes_[0] * (to > from ? to - from : 0);
    from = std::max(from, window);
    kv_bytes_ += page_bytes_[1] * (to > from ? to - from : 0);
  };
  for (const AttentionItem& item : items_) {
    if (item.whole()) {
      const uint32_t first = chunks_[item.chunk].first_position + item.first_row;
      add(first, 0, (first + item.rows - 1) / shm::kPageTokens + 1);
      continue;
    }
    const uint32_t begin = item.segment * kSegmentPages;
    for (uint32_t i = item.chunk; i < item.chunk + item.rows; ++i) {
      const Chunk& chunk = chunks_[order_[i]];
      const uint32_t end = std::min(begin + kSegmentPages, pages_of(chunk));
      add(chunk.first_position, i == item.chunk ? begin : std::clamp(common_[i], begin, end), end);
    }
  }
}

}  // namespace ellm::model
