// From logits to a token: penalties, bias, temperature, top-k, top-p, min-p, and a counter-based generator keyed by
// (seed, sample index, position), so that a draw depends on nothing else. One sampler per request; the engine thread.
#pragma once
#include <cstdint>
#include <optional>
#include <span>
#include <unordered_map>
#include <utility>
#include <vector>

#include "daemon/model/best_tokens.h"
#include "kernels/kernel_set.h"

namespace ellm::model {

struct SamplingParams {
  float temperature = 0.7f;                           // 0: greedy
  uint32_t top_k = 0;                                 // 0: all
  float top_p = 0.95f;                                // 1: all
  float min_p = 0;                                    // 0: off
  float repetition_penalty = 1;                       // divides positive logits, multiplies negative ones; 1: off
  float presence_penalty = 0, frequency_penalty = 0;  // OpenAI's, over the generated tokens
  uint64_t seed = 0;
  uint32_t sample_index = 0;
  std::vector<std::pair<uint32_t, float>> logit_bias = {};
  uint32_t logprobs = 0;  // how many alternatives to report
};

struct Sampled {
  uint32_t token = 0;
  float logprob = 0;                            // natural, of the model's own distribution; if asked for
  std::vector<std::pair<uint32_t, float>> top;  // best first
};

class Sampler {
 public:
  Sampler(const SamplingParams& params, const kernels::KernelSet& kernels);
  /// Draws the token for `position` from one row of logits (left untouched). `want_logprobs` also fills logprob and
  /// top.
  Sampled sample(std::span<const float> logits, uint64_t position, bool want_logprobs);
  /// Tells the sampler a token of the prompt (for the repetition penalty) or one that was generated.
  void accept_prompt(uint32_t token);
  void accept(uint32_t token);

 private:
  std::span<const float> adjusted(std::span<const float> logits);
  uint32_t draw(std::span<const float> logits, uint64_t position);
  float power_of(size_t i);
  std::optional<uint32_t> draw_limited(bool top_k, float u);
  std::optional<uint32_t> pick(double mass, float u, bool complete);

  SamplingParams params_;
  const kernels::KernelSet& kernels_;
  std::unordered_map<uint32_t, uint32_t> generated_;  // token -> times
  std::unordered_map<uint32_t, uint32_t> seen_;       // prompt and generated
  BestTokens best_;
  std::vector<float> adjusted_, powers_;  // powers_: of the best, as far as they were looked at
};

/// Uniform in [0, 1), a pure function of its arguments (Philox 4x32-10, Salmon et al. 2011).
float uniform_draw(uint64_t seed, uint32_t sample_index, uint64_t position);

}  // namespace ellm::model
