// Qwen2 and Qwen2.5: Q, K and V carry biases; RoPE pairs the two halves of a head.
#include "daemon/model/common_tensors.h"

namespace ellm::model::architectures {
namespace {
constexpr auto kLayer = join(kAttentionTensors, bias_tensors(required), kFeedForwardTensors);
}  // namespace

extern const Architecture qwen2;
const Architecture qwen2 = {.name = "qwen2", .neox = true, .model = kModelTensors, .layer = kLayer};

}  // namespace ellm::model::architectures
