#include "tools/bench/cost.h"

#include <algorithm>
#include <cmath>

#include "kernels/kv_block.h"

namespace ellm::bench {

double Cost::all_operations() const {
  double sum = attention_operations;
  for (const auto& [type, n] : operations) sum += n;
  return sum;
}

Cost& Cost::operator+=(const Cost& other) {
  weight_bytes += other.weight_bytes;
  kv_bytes += other.kv_bytes;
  attention_operations += other.attention_operations;
  for (const auto& [type, n] : other.operations) operations[type] += n;
  return *this;
}

CostModel::CostModel(const format::Gguf& file, const model::ModelConfig& config) : config_(config) {
  using Use = Matrix::Use;
  for (const format::Tensor& t : file.tensors()) {
    const auto type = model::weight_type(*t.type);
    if (!type) continue;  // tables that nobody reads
    Use use = t.name.find("_exps.") != t.name.npos ? Use::experts : Use::all;
    if (t.name == "output.weight" || (t.name == "token_embd.weight" && config.tied_output)) use = Use::output;
    else if (t.name == "token_embd.weight") use = Use::table;
    const bool matrix = t.dims.size() > 1;
    matrices_.push_back(
        {*type, static_cast<double>(t.data.size()), matrix ? static_cast<double>(t.elements()) : 0, use});
  }
}

Cost CostModel::weights(double rows, double logits) const {
  // Experts that at least one of the rows chooses, were the choice uniform.
  const double used = config_.experts == 0 ? 0 : static_cast<double>(config_.experts_used) / config_.experts;
  const double touched = 1 - std::pow(1 - used, rows);
  Cost cost;
  for (const Matrix& m : matrices_) {
    switch (m.use) {
      case Matrix::Use::all:
        cost.weight_bytes += m.bytes;
        if (m.weights > 0) cost.operations[m.type] += 2 * m.weights * rows;
        break;
      case Matrix::Use::output:
        cost.weight_bytes += logits > 0 ? m.bytes : 0;
        cost.operations[m.type] += 2 * m.weights * logits;
        break;
      case Matrix::Use::table: cost.weight_bytes += m.bytes / config_.vocabulary * rows; break;
      case Matrix::Use::experts:
        cost.weight_bytes += m.bytes * touched;
        cost.operations[m.type] += 2 * m.weights * used * rows;
        break;
    }
  }
  return cost;
}

/// Rows of one sequence from a position on: each sees what is before it and itself. Its first tokens, `read_already`,
/// another sequence of the step has read.
Cost CostModel::attention(double first_position, double rows, double read_already, shm::KvTypes kv) const {
  const shm::PageGeometry page = model::page_geometry(config_, kv);
  const auto rest = [&](shm::KvType type) {  // of the first token: not read in any page but the first
    return kernels::kv_rest_bytes(static_cast<kernels::KvType>(type), config_.head_dim);
  };
  const double bytes =
      static_cast<double>(page.k_block_bytes() - rest(page.k_type) + page.v_block_bytes() - rest(page.v_type)) *
      config_.kv_heads / shm::kPageTokens;
  Cost cost;
  for (uint32_t layer = 0; layer < config_.layers; ++layer) {
    double read = first_position + rows - read_already, seen = rows * first_position + rows * (rows + 1) / 2;
    if (config_.windowed(layer)) {
      seen = std::min(seen, rows * config_.window);
      read = std::min(read, rows + config_.window);
    }
    cost.kv_bytes += read * bytes;
    cost.attention_operations += seen * 4 * config_.heads * config_.head_dim;
  }
  return cost;
}

/// Steps of kPrefillRows rows, filled by one sequence after another.
Cost CostModel::prompts(const Work& work, shm::KvTypes kv) const {
  Cost cost;
  for (uint32_t at = 0, all = work.batch * work.prompt; at < all; at += kPrefillRows) {
    const uint32_t end = std::min(at + kPrefillRows, all);
    cost += weights(end - at, end / work.prompt - at / work.prompt);
    for (uint32_t from = at, next; from < end; from = next) {
      next = std::min(end, (from / work.prompt + 1) * work.prompt);
      cost += attention(work.depth + from % work.prompt, next - from, work.shared && from > at ? work.depth : 0, kv);
    }
  }
  return cost;
}

Cost CostModel::of(const Work& work, shm::KvTypes kv) const {
  Cost cost;
  if (work.kind != Kind::decode) cost += prompts(work, kv);
  if (work.kind == Kind::prefill) return cost;
  for (uint32_t step = 0; step < work.generate; ++step) {
    cost += weights(work.batch, work.batch);
    for (uint32_t b = 0; b < work.batch; ++b)
      cost += attention(work.depth + work.prompt + step, 1, work.shared && b > 0 ? work.depth : 0, kv);
  }
  return cost;
}

Bound CostModel::bound(const Cost& cost, const Limits& limits, shm::KvTypes kv) {
  double compute = 0;
  for (const auto& [type, n] : cost.operations) compute += n / limits.peak(type);
  // Scores with K, then sums of V: half of the operations each.
  const auto rate = [&](shm::KvType t) {
    return t == shm::KvType::int8 || t == shm::KvType::int4 ? limits.integer_peak() : limits.floating;
  };
  compute += cost.attention_operations / 2 / rate(kv.k) + cost.attention_operations / 2 / rate(kv.v);
  return {cost.bytes() / limits.bandwidth(), compute};
}

}  // namespace ellm::bench
