// Sampling. The order: bias and penalties, temperature, min-p, top-k, top-p, then one draw. Everything that decides is
// computed in an order that depends on the logits alone, so a draw is the same on every machine and in any company.
#include "daemon/model/sampler.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <limits>

#include "kernels/exp.h"

namespace ellm::model {
namespace {

// Logits scaled, from the largest.
constexpr float kFirstThreshold = -4, kLastThreshold = -128;

}  // namespace

float uniform_draw(uint64_t seed, uint32_t sample_index, uint64_t position) {
  constexpr uint32_t kMultiplier0 = 0xD2511F53, kMultiplier1 = 0xCD9E8D57, kWeyl0 = 0x9E3779B9, kWeyl1 = 0xBB67AE85;
  std::array<uint32_t, 4> x = {static_cast<uint32_t>(position), static_cast<uint32_t>(position >> 32), sample_index, 0};
  auto k0 = static_cast<uint32_t>(seed), k1 = static_cast<uint32_t>(seed >> 32);
  for (int round = 0; round < 10; ++round, k0 += kWeyl0, k1 += kWeyl1) {
    const uint64_t p0 = uint64_t{kMultiplier0} * x[0], p1 = uint64_t{kMultiplier1} * x[2];
    x = {static_cast<uint32_t>(p1 >> 32) ^ x[1] ^ k0, static_cast<uint32_t>(p1),
         static_cast<uint32_t>(p0 >> 32) ^ x[3] ^ k1, static_cast<uint32_t>(p0)};
  }
  return static_cast<float>(x[0] >> 8) * 0x1p-24f;
}

Sampler::Sampler(const SamplingParams& params, const kernels::KernelSet& kernels)
    : params_(params), kernels_(kernels) {}

void Sampler::accept_prompt(uint32_t token) {
  if (params_.repetition_penalty != 1) ++seen_[token];
}

void Sampler::accept(uint32_t token) {
  if (params_.repetition_penalty != 1) ++seen_[token];
  if (params_.presence_penalty != 0 || params_.frequency_penalty != 0) ++generated_[token];
}

/// The row with bias and penalties applied: the row itself where there are none.
std::span<const float> Sampler::adjusted(std::span<const float> logits) {
  if (params_.logit_bias.empty() && seen_.empty() && generated_.empty()) return logits;
  adjusted_.assign(logits.begin(), logits.end());
  for (const auto& [token, times] : seen_) {
    if (token >= adjusted_.size()) continue;
    float& x = adjusted_[token];
    x = x > 0 ? x / params_.repetition_penalty : x * params_.repetition_penalty;
  }
  for (const auto& [token, times] : generated_) {
    if (token < adjusted_.size())
      adjusted_[token] -= params_.presence_penalty + params_.frequency_penalty * static_cast<float>(times);
  }
  for (const auto& [token, bias] : params_.logit_bias) {
    if (token < adjusted_.size()) adjusted_[token] += bias;
  }
  return adjusted_;
}

/// One draw from the distribution that temperature, min-p, top-k and top-p leave of `logits`.
uint32_t Sampler::draw(std::span<const float> logits, uint64_t position) {
  const uint32_t best = kernels_.argmax(logits.data(), static_cast<uint32_t>(logits.size()));
  const float peak = logits[best];
  if (!std::isfinite(peak)) return best;
  best_.look_at_scaled(logits, peak, params_.temperature);
  // The distribution is a prefix of all tokens, best first. Without top-k and min-p that prefix is rarely long: it is
  // sought down to a threshold that falls until the prefix is known to be complete.
  powers_.clear();
  const float u = uniform_draw(params_.seed, params_.sample_index, position);
  const bool top_k = params_.top_k > 0 && params_.top_k < logits.size();
  if (top_k || params_.min_p > 0) return draw_limited(top_k, u).value_or(best);
  const double mass = kernels::exp_spec(
      kernels_.tempered_log_sum_exp(logits.data(), static_cast<uint32_t>(logits.size()), peak, params_.temperature));
  best_.find_above(kFirstThreshold);
  for (float threshold = 2 * kFirstThreshold;; threshold *= 2) {
    if (const auto token = pick(mass, u, false); token) return *token;
    if (threshold <= kLastThreshold) break;
    best_.find_down_to(threshold);
  }
  best_.find_down_to(-std::numeric_limits<float>::infinity());
  return pick(mass, u, true).value_or(best);
}

/// What top-k and min-p leave is all there is.
std::optional<uint32_t> Sampler::draw_limited(bool top_k, float u) {
  if (top_k) best_.find_best(params_.top_k);
  else best_.find_above(std::log(params_.min_p) - 0.01f);
  double mass = 0;
  size_t likely = 0;
  for (; likely < best_.size() && power_of(likely) >= params_.min_p; ++likely) mass += power_of(likely);
  best_.keep_first(likely);
  return pick(mass, u, true);
}

/// exp of the i-th best's scaled logit; asked for in order the first time.
float Sampler::power_of(size_t i) {
  if (i == powers_.size()) powers_.push_back(kernels::exp_spec(best_.value(i)));
  return powers_[i];
}

/// Cuts the candidates at top-p of `mass` and draws among them. Absent: they hold too little of it to tell (unless
/// `complete`).
std::optional<uint32_t> Sampler::pick(double mass, float u, bool complete) {
  double kept_mass = mass;
  if (params_.top_p < 1) {
    kept_mass = 0;
    const double wanted = mass * params_.top_p;
    for (size_t i = 0; i < best_.size() && (i == 0 || kept_mass < wanted); ++i) kept_mass += power_of(i);
    if (kept_mass < wanted && !complete) return std::nullopt;
  }
  const double target = kept_mass * u;
  double sum = 0;
  for (size_t i = 0; i < best_.size(); ++i) {
    sum += power_of(i);
    if (sum > target) return best_.id(i);
  }
  return complete && best_.size() != 0 ? std::optional(best_.id(best_.size() - 1)) : std::nullopt;
}

Sampled Sampler::sample(std::span<const float> logits, uint64_t position, bool want_logprobs) {
  const std::span<const float> row = adjusted(logits);
  Sampled out;
  out.token =
      params_.temperature == 0 ? kernels_.argmax(row.data(), static_cast<uint32_t>(row.size())) : draw(row, position);
  if (want_logprobs) {
    const float total = kernels_.log_sum_exp(logits.data(), static_cast<uint32_t>(logits.size()));
    out.logprob = logits[out.token] - total;
    if (params_.logprobs > 0) {
      best_.look_at(logits);
      best_.find_best(params_.logprobs);
      for (size_t i = 0; i < best_.size(); ++i) out.top.emplace_back(best_.id(i), best_.value(i) - total);
    }
  }
  return out;
}

}  // namespace ellm::model
