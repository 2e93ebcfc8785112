// What is taken out of each K before it is rounded to integers, and put back into the scores: a constant vector of the
// layer and KV head, turned to the middle of the token's page. A few channels of K are huge and alike in all tokens;
// what is left of them fits a scale that the others need. Within a page one vector serves all tokens, so scores want
// one product per page instead of one per token; a pair that turns much within a page loses accordingly less of its
// mean. For a few pairs, those that would keep most, it is taken out token by token, with a table of the page's 32
// turns.
#pragma once
#include <stdint.h>

namespace ellm::kernels {

inline constexpr uint32_t kMostMeanPairs = 16;

struct KeyMean {
  const float* mean;       // (head_dim), before RoPE
  const float* part;       // (head_dim): how much of it is taken out of all tokens alike; 0 in the pairs below
  const float *cos, *sin;  // (page / 16, half, page % 16): the angles of position 32 * page + 15.5
  uint32_t half;           // rotated pairs
  bool neox;
  uint32_t pairs;             // taken out token by token: at most kMostMeanPairs
  const uint32_t* pair_dims;  // (pairs, 2)
  const float* turns;         // (pairs, cos | sin, 32): from the page's middle to each token
};

}  // namespace ellm::kernels
