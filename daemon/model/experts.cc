// A mixture of experts, phase by phase:
//   norm, router's input | router | choose | group | pack each pair's row | gate up, activation, pack | down | add
// A pair is a row in the group of one of its experts. The shared expert, where there is one, is the last: every row
// uses it, weighted by a sigmoid. How rows are grouped never changes a row's arithmetic, and its experts' outputs are
// added in ascending order (HACKING.md, fixed-order rule).
#include "daemon/model/experts.h"

#include <algorithm>

#include "daemon/model/panel_share.h"
#include "kernels/exp.h"

namespace ellm::model {
namespace {

using kernels::Activations;
using kernels::PanelMatrix;
using runtime::Worker;

constexpr size_t kAlign = 256;
constexpr size_t aligned(size_t bytes) { return (bytes + kAlign - 1) / kAlign * kAlign; }
/// Room for the packed rows of up to `groups` groups that have `pairs` rows together.
size_t grouped_bytes(uint32_t pairs, uint32_t groups, uint32_t cols) {
  return aligned(Activations::bytes(pairs, cols)) + size_t{groups} * aligned(Activations::bytes(1, 32));
}
uint32_t slots_of(const ModelConfig& c) { return c.experts_used + (c.shared_feed_forward != 0); }

struct Sizes {
  size_t normed, logits, hidden, out, router, input, activated;
  Sizes(const ModelConfig& c, uint32_t rows) {
    const uint32_t pairs = rows * slots_of(c), widest = std::max(c.expert_feed_forward, c.shared_feed_forward);
    const uint32_t groups = std::min(pairs, c.experts + 1);
    normed = aligned(size_t{rows} * c.embedding * 4);
    logits = aligned(size_t{rows} * (c.experts + 1) * 4);
    hidden = aligned(size_t{pairs} * widest * 4);
    out = aligned(size_t{pairs} * c.embedding * 4);
    router = aligned(Activations::bytes(rows, c.embedding));
    input = grouped_bytes(pairs, groups, c.embedding);
    activated = grouped_bytes(pairs, groups, widest);
  }
  size_t all() const { return normed + logits + 2 * hidden + out + router + input + activated; }
};

}  // namespace

uint64_t ExpertsPass::bytes(const ModelConfig& config, uint32_t max_rows) { return Sizes(config, max_rows).all(); }

ExpertsPass::ExpertsPass(const ModelConfig& config, const kernels::KernelSet& kernels, uint32_t max_rows)
    : c_(config), k_(kernels), slots_(slots_of(config)),
      widest_(std::max(config.expert_feed_forward, config.shared_feed_forward)), choices_(size_t{max_rows} * slots_),
      pair_row_(size_t{max_rows} * slots_), starts_(config.experts + 2) {
  const Sizes sizes(config, max_rows);
  region_ = runtime::Region::map(sizes.all(), {});
  std::byte* at = region_.data();
  const auto take = [&](size_t bytes) { return std::exchange(at, at + bytes); };
  normed_ = reinterpret_cast<float*>(take(sizes.normed));
  logits_ = reinterpret_cast<float*>(take(sizes.logits));
  gate_ = reinterpret_cast<float*>(take(sizes.hidden));
  up_ = reinterpret_cast<float*>(take(sizes.hidden));
  out_ = reinterpret_cast<float*>(take(sizes.out));
  router_memory_ = take(sizes.router);
  input_memory_ = take(sizes.input);
  activated_memory_ = take(sizes.activated);
  groups_.reserve(config.experts + 1);
}

void ExpertsPass::run(Worker& worker, const Layer& layer, FloatRows residual, uint32_t n) {
  route(worker, layer, residual, n);
  if (worker.index() == 0) group(layer, n);
  worker.barrier();
  pack_inputs(worker);
  gate_and_up(worker);
  down(worker);
  const auto [first, last] = worker.share(n);
  for (uint32_t r = first; r < last; ++r) {
    float* x = residual[r];
    for (uint32_t s = 0; s < slots_; ++s) {
      const Choice& choice = choices_[size_t{r} * slots_ + s];
      const float* out = out_ + size_t{choice.pair} * c_.embedding;
      for (uint32_t i = 0; i < c_.embedding; ++i) x[i] += choice.weight * out[i];
    }
  }
  worker.barrier();
}

/// Which experts each row uses, and how much each counts.
void ExpertsPass::route(Worker& worker, const Layer& layer, FloatRows residual, uint32_t n) {
  const Activations x = Activations::bind(router_memory_, n, c_.embedding);
  const auto [first, last] = worker.share(n);
  for (uint32_t r = first; r < last; ++r) {
    float* normed = normed_ + size_t{r} * c_.embedding;
    k_.rms_norm(residual[r], layer.feed_forward_norm, c_.embedding, c_.norm_epsilon, normed);
    pack(layer.router, x, r, normed, 0, x.blocks());
    if (layer.shared_gate.rows != 0) pack(layer.shared_gate, x, r, normed, 0, x.blocks());
  }
  worker.barrier();
  const size_t stride = c_.experts + 1;
  for_panels(worker, layer.router.panels(), 1, [&](uint32_t from, uint32_t to) {
    k_.matmul({layer.router, x, from, to, logits_, stride});
    if (from == 0 && layer.shared_gate.rows != 0) k_.matmul({layer.shared_gate, x, 0, 1, logits_ + c_.experts, stride});
  });
  worker.barrier();
  for (uint32_t r = first; r < last; ++r) choose(r);
  worker.barrier();
}

/// The experts of the largest logits, the lowest of equals. A weight is the softmax over all experts, or over the
/// chosen.
void ExpertsPass::choose(uint32_t row) {
  const float* logits = logits_ + size_t{row} * (c_.experts + 1);
  Choice* chosen = choices_.data() + size_t{row} * slots_;
  Choice* const end = chosen + c_.experts_used;
  float largest = 0;
  for (Choice* next = chosen; next < end; ++next) {
    const auto taken = [&](uint32_t e) {
      return std::any_of(chosen, next, [&](const Choice& c) { return c.expert == e; });
    };
    uint32_t best = c_.experts;
    for (uint32_t e = 0; e < c_.experts; ++e)
      if ((best == c_.experts || logits[e] > logits[best]) && !taken(e)) best = e;
    next->expert = best;
    if (next == chosen) largest = logits[best];
  }
  std::sort(chosen, end, [](const Choice& a, const Choice& b) { return a.expert < b.expert; });
  float sum = 0;
  for (Choice* c = chosen; c < end; ++c) sum += c->weight = kernels::exp_spec(logits[c->expert] - largest);
  if (!c_.normalise_experts) {
    sum = 0;
    for (uint32_t e = 0; e < c_.experts; ++e) sum += kernels::exp_spec(logits[e] - largest);
  }
  for (Choice* c = chosen; c < end; ++c) c->weight /= sum;
  if (c_.shared_feed_forward != 0) *end = {c_.experts, 1 / (1 + kernels::exp_spec(-logits[c_.experts])), 0};
}

/// Sorts the rows by expert. One worker.
void ExpertsPass::group(const Layer& layer, uint32_t n) {
  const size_t pairs = size_t{n} * slots_;
  std::fill(starts_.begin(), starts_.end(), 0);
  for (size_t i = 0; i < pairs; ++i) ++starts_[choices_[i].expert + 1];
  groups_.clear();
  std::byte *input = input_memory_, *activated = activated_memory_;
  for (uint32_t e = 0; e <= c_.experts; ++e) {
    const uint32_t rows = starts_[e + 1];
    starts_[e + 1] += starts_[e];
    if (rows == 0) continue;
    const Expert& expert = e < c_.experts ? layer.experts[e] : layer.shared_expert;
    groups_.push_back({&expert, starts_[e], Activations::bind(input, rows, c_.embedding),
                       Activations::bind(activated, rows, expert.gate.rows)});
    input += aligned(Activations::bytes(rows, c_.embedding));
    activated += aligned(Activations::bytes(rows, expert.gate.rows));
  }
  for (size_t i = 0; i < pairs; ++i) {
    choices_[i].pair = starts_[choices_[i].expert]++;
    pair_row_[choices_[i].pair] = static_cast<uint32_t>(i / slots_);
  }
}

void ExpertsPass::pack(const PanelMatrix& m, const Activations& to, uint32_t row, const float* x, uint32_t first_block,
                       uint32_t last_block) const {
  (kernels::is_quantised(m.type) ? k_.pack_q8 : k_.pack_f32)(to, row, x, first_block, last_block);
}

void ExpertsPass::pack_inputs(Worker& worker) {
  for (const Group& g : groups_) {
    const auto [first, last] = worker.share(g.input.rows);
    for (uint32_t i = first; i < last; ++i) {
      const float* x = normed_ + size_t{pair_row_[g.first_pair + i]} * c_.embedding;
      pack(g.expert->gate, g.input, i, x, 0, g.input.blocks());
      if (kernels::is_quantised(g.expert->up.type) != kernels::is_quantised(g.expert->gate.type))
        pack(g.expert->up, g.input, i, x, 0, g.input.blocks());
    }
  }
  worker.barrier();
}

/// A worker's share of all groups' units together: body(group, first, last).
template <typename Groups, typename Units, typename Body>
void for_groups(Worker& worker, const Groups& groups, const Units& units, const Body& body) {
  uint32_t all = 0;
  for (const auto& g : groups) all += units(g);
  for_panels(worker, all, 1, [&](uint32_t first, uint32_t last) {
    uint32_t begin = 0;
    for (const auto& g : groups) {
      const uint32_t end = begin + units(g), from = std::max(first, begin), to = std::min(last, end);
      if (from < to) body(g, from - begin, to - begin);
      begin = end;
    }
  });
}

void ExpertsPass::gate_and_up(Worker& worker) {
  constexpr uint32_t kPanels = kernels::kBlock / kernels::kPanelRows;  // whose rows are one block of `down`'s input
  const auto blocks = [](const Group& g) { return g.activated.blocks(); };
  for_groups(worker, groups_, blocks, [&](const Group& g, uint32_t first, uint32_t last) {
    const PanelMatrix &gate = g.expert->gate, &up = g.expert->up;
    const uint32_t from = first * kernels::kBlock, to = std::min(last * kernels::kBlock, gate.rows);
    float* gate_out = gate_ + size_t{g.first_pair} * widest_;
    float* up_out = up_ + size_t{g.first_pair} * widest_;
    k_.matmul({gate, g.input, first * kPanels, std::min(last * kPanels, gate.panels()), gate_out, widest_});
    k_.matmul({up, g.input, first * kPanels, std::min(last * kPanels, up.panels()), up_out, widest_});
    for (uint32_t i = 0; i < g.input.rows; ++i) {
      float* row = gate_out + size_t{i} * widest_;
      k_.silu_mul(row + from, up_out + size_t{i} * widest_ + from, to - from, row + from);
      pack(g.expert->down, g.activated, i, row + from, first, last);
    }
  });
  worker.barrier();
}

void ExpertsPass::down(Worker& worker) {
  const auto panels = [](const Group& g) { return g.expert->down.panels(); };
  for_groups(worker, groups_, panels, [&](const Group& g, uint32_t first, uint32_t last) {
    k_.matmul({g.expert->down, g.activated, first, last, out_ + size_t{g.first_pair} * c_.embedding, c_.embedding});
  });
  worker.barrier();
}

}  // namespace ellm::model
