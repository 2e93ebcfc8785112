// Gemma 3: as Gemma 2, but norms of queries and keys instead of the soft cap on scores, and five layers with a sliding
// window to one without; the windowed ones have a RoPE base of their own. Norm weights are stored with their 1 added.
#include <cmath>

#include "daemon/model/common_tensors.h"
#include "daemon/model/config_reader.h"

namespace ellm::model::architectures {
namespace {

constexpr auto kLayer = join(kAttentionTensors, kHeadNormTensors, kFeedForwardTensors, kPostNormTensors);
constexpr uint32_t kLayersOf27B = 62;

void read(const ConfigReader& reader, ModelConfig& config) {
  config.activation = Activation::gelu;
  config.embedding_scale = std::sqrt(static_cast<float>(config.embedding));
  if (config.layers == kLayersOf27B)  // as in Gemma 2
    config.attention_scale = 1 / std::sqrt(static_cast<float>(config.embedding) / static_cast<float>(config.heads));
  config.logit_soft_cap = read_soft_cap(reader, "final_logit_softcapping").value_or(0.0f);
  config.window = read_window(reader).value_or(0);
  config.window_period = 6;
  RopeConfig local;  // neither stretched nor scaled
  local.dimensions = config.rope.dimensions;
  local.neox = config.rope.neox;
  local.base = reader.find_number("rope.freq_base_swa", 2, 1e15).value_or(10000);
  config.window_rope = local;
}

}  // namespace

extern const Architecture gemma3;
const Architecture gemma3 = {.name = "gemma3", .neox = true, .model = kModelTensors, .layer = kLayer, .read = read};

}  // namespace ellm::model::architectures
