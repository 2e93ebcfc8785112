// See runner.h.
#include "tools/conformance/runner.h"

#include <algorithm>
#include <cmath>
#include <stdexcept>

namespace ellm::conformance {
namespace {

constexpr uint32_t kPages = 64, kRows = 512;   // 2048 tokens; of a step

}  // namespace

Runner::Runner(const std::string& path, shm::KvType kv_type)
    : model_(model::Model::load(path, {.lock = false})), pool_(runtime::read_topology(), 2) {
  kv_ = shm::KvPages::create({.geometry = model::page_geometry(model_->config(), kv_type),
                              .pages = kPages, .fingerprint = "conformance"});
  forward_ = std::make_unique<model::ForwardPass>(model_, model::choose_kernels("auto"), pool_, *kv_, kRows, kRows);
}

std::vector<float> Runner::logits(std::span<const uint32_t> tokens) {
  std::vector<shm::PageId> pages;
  std::vector<float> all;
  for (uint32_t at = 0; at < tokens.size();) {
    const auto count = static_cast<uint32_t>(std::min<size_t>(kRows, tokens.size() - at));
    while (pages.size() * shm::kPageTokens < at + count) {
      const auto page = kv_->allocate();
      if (!page) throw std::runtime_error("a text of more than 2048 tokens");
      pages.push_back(*page);
    }
    const model::Chunk chunk{tokens.subspan(at, count), at, pages, count};
    const std::span<const float> rows = forward_->step({&chunk, 1});
    all.insert(all.end(), rows.begin(), rows.end());
    at += count;
  }
  for (const shm::PageId page : pages) kv_->release(page);
  return all;
}

std::span<const float> row_of(const std::vector<float>& logits, size_t row, uint32_t vocabulary) {
  return std::span(logits).subspan(row * vocabulary, vocabulary);
}

uint32_t best_of(std::span<const float> row) {
  return static_cast<uint32_t>(std::ranges::max_element(row) - row.begin());
}

double margin_of(std::span<const float> row) {
  std::vector<float> two(2);
  std::ranges::partial_sort_copy(row, two, std::greater());
  return two[0] - two[1];
}

double mean_nll(const std::vector<float>& logits, std::span<const uint32_t> tokens, uint32_t vocabulary) {
  double sum = 0;
  for (size_t i = 0; i + 1 < tokens.size(); ++i) {
    const auto row = row_of(logits, i, vocabulary);
    const double peak = *std::ranges::max_element(row);
    double total = 0;
    for (const float x : row) total += std::exp(x - peak);
    sum += peak + std::log(total) - row[tokens[i + 1]];
  }
  return sum / static_cast<double>(tokens.size() - 1);
}

}  // namespace ellm::conformance
