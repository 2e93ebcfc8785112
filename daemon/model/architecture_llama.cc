// Llama 1 to 3, Mistral, SmolLM2 and their like. Conversion to GGUF permutes the rows of Q and K, so that RoPE works on
// neighbouring values. Biases are rare but exist (attention_bias in the original configuration).
#include "daemon/model/common_tensors.h"

namespace ellm::model::architectures {
namespace {
constexpr auto kLayer = join(kAttentionTensors, bias_tensors(optional), kFeedForwardTensors);
}  // namespace

extern const Architecture llama;
const Architecture llama = {.name = "llama", .neox = false, .model = kModelTensors, .layer = kLayer};

}  // namespace ellm::model::architectures
