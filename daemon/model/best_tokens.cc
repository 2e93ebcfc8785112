// See best_tokens.h.
#include "daemon/model/best_tokens.h"

#include <algorithm>
#include <array>
#include <bit>
#include <cstring>
#include <functional>
#include <limits>
#include <numeric>

namespace ellm::model {
namespace {

constexpr size_t kBlock = 32;        // values that are passed together
constexpr size_t kFirstSorted = 32;  // of what was found; then eight times as many
constexpr size_t kMany = 2048;       // that a radix sort is faster for
constexpr float kLeast = -std::numeric_limits<float>::infinity();

/// A number that is the smaller, the larger the value; 0 and -0 have the same.
uint32_t place_of(float value) {
  const auto bits = std::bit_cast<uint32_t>(value + 0.0f);
  return bits & 0x80000000u ? bits : ~bits & 0x7fffffffu;
}

float value_at(uint32_t place) { return std::bit_cast<float>(place & 0x80000000u ? place : ~place & 0x7fffffffu); }

using Vector [[gnu::vector_size(16)]] = float;  // that any machine has
constexpr size_t kVector = sizeof(Vector) / sizeof(float);

float scale(float x, float peak, float temperature) {
  const float scaled = (x - peak) / temperature;
  return scaled > kLeast ? scaled : kLeast;  // not NaN
}

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
    for (float& x : values) x = ellm::model::scale(x, peak, temperature);
  }
};

std::span<const float> block_of(std::span<const float> row, size_t block) {
  return row.subspan(block * kBlock, std::min(kBlock, row.size() - block * kBlock));
}

/// Sorts by 11 bits at a time, from the lowest; bits that are the same everywhere take no pass.
void radix_sort(std::span<uint64_t> keys) {
  constexpr uint32_t kBits = 11, kPasses = (64 + kBits - 1) / kBits;
  constexpr size_t kDigits = size_t{1} << kBits;
  const auto digit = [](uint64_t key, uint32_t pass) { return (key >> (pass * kBits)) & (kDigits - 1); };
  std::vector<uint32_t> counts(kPasses * kDigits);
  for (const uint64_t key : keys) {
    for (uint32_t pass = 0; pass < kPasses; ++pass) ++counts[pass * kDigits + digit(key, pass)];
  }
  std::vector<uint64_t> other(keys.size());
  std::span<uint64_t> from = keys, to = other;
  for (uint32_t pass = 0; pass < kPasses; ++pass) {
    const std::span<uint32_t> next = std::span(counts).subspan(pass * kDigits, kDigits);
    if (next[digit(from[0], pass)] == keys.size()) continue;
    std::exclusive_scan(next.begin(), next.end(), next.begin(), 0u);
    for (const uint64_t key : from) to[next[digit(key, pass)]++] = key;
    std::swap(from, to);
  }
  if (from.data() != keys.data()) std::ranges::copy(from, keys.begin());
}

size_t blocks_of(std::span<const float> row) { return (row.size() + kBlock - 1) / kBlock; }

}  // namespace

void BestTokens::look_at(std::span<const float> values) { look_at_scaled(values, 0, 1); }

void BestTokens::look_at_scaled(std::span<const float> values, float peak, float temperature) {
  values_ = values, peak_ = peak, temperature_ = temperature;
  largest_.resize(blocks_of(values));
  // The larger of two is not the smaller when both are scaled.
  for (size_t b = 0; b < largest_.size(); ++b)
    largest_[b] = scale(Block(block_of(values, b)).largest(), peak, temperature);
}

void BestTokens::find_above(float floor) {
  found_.clear();
  sorted_ = 0;
  floor_ = std::numeric_limits<float>::quiet_NaN();  // above which there is nothing yet
  find_down_to(floor);
}

void BestTokens::find_down_to(float floor) {
  for (size_t b = 0; b < largest_.size(); ++b) {
    if (largest_[b] < floor) continue;
    const size_t count = block_of(values_, b).size();
    Block block(block_of(values_, b));
    block.scale(peak_, temperature_);
    for (size_t i = 0; i < count; ++i) {
      const float x = block.values[i];
      if (x >= floor && !(x >= floor_)) found_.push_back(uint64_t{place_of(x)} << 32 | (b * kBlock + i));
    }
  }
  floor_ = floor;
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
  if (end - sorted_ > kMany) {
    radix_sort(std::span(found_).subspan(sorted_));
    sorted_ = found_.size();
    return;
  }
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
