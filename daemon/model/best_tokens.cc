// See best_tokens.h.
#include "daemon/model/best_tokens.h"

#include <algorithm>
#include <array>
#include <bit>
#include <cstring>
#include <functional>
#include <limits>

namespace ellm::model {
namespace {

constexpr size_t kBlock = 32;        // values that are passed together
constexpr size_t kFirstSorted = 32;  // of what was found; then eight times as many
constexpr float kLeast = -std::numeric_limits<float>::infinity();

/// A number that is the smaller, the larger the value; 0 and -0 have the same.
uint32_t place_of(float value) {
  const auto bits = std::bit_cast<uint32_t>(value + 0.0f);
  return bits & 0x80000000u ? bits : ~bits & 0x7fffffffu;
}

float value_at(uint32_t place) { return std::bit_cast<float>(place & 0x80000000u ? place : ~place & 0x7fffffffu); }

using Vector [[gnu::vector_size(16)]] = float;  // that any machine has
constexpr size_t kVector = sizeof(Vector) / sizeof(float);

float without_nan(float x) { return x > kLeast ? x : kLeast; }

/// A part of the row that is passed as one. What is done to it has constant bounds and a place of its own, so that it
/// is compiled to vectors.
struct Block {
  std::array<float, kBlock> values;

  explicit Block(std::span<const float> from) {
    if (from.size() < kBlock) values.fill(kLeast);
    if (from.size() < kBlock) std::ranges::copy(from, values.begin());
    else std::copy_n(from.begin(), kBlock, values.begin());
  }
  float largest() const {
    Vector most = {kLeast, kLeast, kLeast, kLeast};
    for (size_t i = 0; i < kBlock; i += kVector) {
      Vector next;
      std::memcpy(&next, &values[i], sizeof next);
      most = next > most ? next : most;  // NaN is not
    }
    return std::max({most[0], most[1], most[2], most[3]});
  }
  void scale(float peak, float temperature) {
    for (float& x : values) x = without_nan((x - peak) / temperature);
  }
};

std::span<const float> block_of(std::span<const float> row, size_t block) {
  return row.subspan(block * kBlock, std::min(kBlock, row.size() - block * kBlock));
}

size_t blocks_of(std::span<const float> row) { return (row.size() + kBlock - 1) / kBlock; }

}  // namespace

void BestTokens::look_at(std::span<const float> values) {
  values_ = values;
  largest_.resize(blocks_of(values));
  for (size_t b = 0; b < largest_.size(); ++b) largest_[b] = Block(block_of(values, b)).largest();
}

std::span<const float> BestTokens::look_at_scaled(std::span<const float> logits, float peak, float temperature) {
  scaled_.resize(logits.size());
  largest_.resize(blocks_of(logits));
  for (size_t b = 0; b < largest_.size(); ++b) {
    const std::span<const float> from = block_of(logits, b);
    Block block(from);
    block.scale(peak, temperature);
    largest_[b] = block.largest();
    std::copy_n(block.values.begin(), from.size(), scaled_.begin() + static_cast<std::ptrdiff_t>(b * kBlock));
  }
  values_ = scaled_;
  return scaled_;
}

void BestTokens::find_above(float floor) {
  found_.clear();
  sorted_ = 0;
  for (size_t b = 0; b < largest_.size(); ++b) {
    if (largest_[b] < floor) continue;
    const std::span<const float> block = block_of(values_, b);
    for (size_t i = 0; i < block.size(); ++i) {
      const float x = without_nan(block[i]);
      if (x >= floor) found_.push_back(uint64_t{place_of(x)} << 32 | (b * kBlock + i));
    }
  }
}

/// As many blocks as there are values wanted have one of at least the so-many-th largest of their largest.
void BestTokens::find_best(size_t count) {
  float floor = kLeast;
  if (count != 0 && count <= largest_.size()) {
    ranks_ = largest_;
    const auto nth = ranks_.begin() + static_cast<std::ptrdiff_t>(count - 1);
    std::nth_element(ranks_.begin(), nth, ranks_.end(), std::greater<float>());
    floor = *nth;
  }
  find_above(floor);
  keep_first(count);
}

void BestTokens::keep_first(size_t count) {
  if (count >= found_.size()) return;
  sort_until(count);
  found_.resize(count);
  sorted_ = std::min(sorted_, count);
}

void BestTokens::sort_until(size_t end) {
  if (end <= sorted_) return;
  const auto from = found_.begin() + static_cast<std::ptrdiff_t>(sorted_);
  const auto to = found_.begin() + static_cast<std::ptrdiff_t>(end);
  if (to != found_.end()) std::nth_element(from, to, found_.end());
  std::sort(from, to);
  sorted_ = end;
}

uint64_t BestTokens::at(size_t i) {
  if (i >= sorted_) sort_until(std::min(found_.size(), std::max({i + 1, kFirstSorted, 8 * sorted_})));
  return found_[i];
}

float BestTokens::value(size_t i) { return value_at(static_cast<uint32_t>(at(i) >> 32)); }

}  // namespace ellm::model
