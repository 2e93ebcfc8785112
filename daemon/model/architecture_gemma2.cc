// Gemma 2: scaled embeddings, norms before and after each half of a layer, GELU, soft caps on scores and logits, and a
// sliding window in every other layer, beginning with the first. Norm weights are stored with their 1 added.
#include <cmath>

#include "daemon/model/common_tensors.h"
#include "daemon/model/config_reader.h"

namespace ellm::model::architectures {
namespace {

constexpr auto kLayer = join(kAttentionTensors, kFeedForwardTensors, kPostNormTensors);
constexpr uint32_t kLayersOf27B = 46;

void read(const ConfigReader& reader, ModelConfig& config) {
  config.activation = Activation::gelu;
  config.embedding_scale = std::sqrt(static_cast<float>(config.embedding));
  // The 27B model divides scores by the root of embedding / heads instead of the head's size; no key says so.
  if (config.layers == kLayersOf27B)
    config.attention_scale = 1 / std::sqrt(static_cast<float>(config.embedding) / static_cast<float>(config.heads));
  config.attention_soft_cap = read_soft_cap(reader, "attn_logit_softcapping").value_or(50.0f);
  config.logit_soft_cap = read_soft_cap(reader, "final_logit_softcapping").value_or(30.0f);
  config.window = read_window(reader).value_or(4096);
  config.window_period = 2;
}

}  // namespace

extern const Architecture gemma2;
const Architecture gemma2 = {.name = "gemma2", .neox = true, .model = kModelTensors, .layer = kLayer, .read = read};

}  // namespace ellm::model::architectures
