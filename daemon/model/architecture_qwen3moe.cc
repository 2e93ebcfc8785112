// Qwen3-MoE: Qwen3 with a mixture of experts; the weights of the chosen ones add up to 1.
#include "daemon/model/common_tensors.h"
#include "daemon/model/config_reader.h"

namespace ellm::model::architectures {
namespace {

constexpr auto kLayer = join(kAttentionTensors, kHeadNormTensors, kExpertTensors);

void read(const ConfigReader& reader, ModelConfig& config) {
  read_experts(reader, config);
  config.normalise_experts = true;
}

}  // namespace

extern const Architecture qwen3moe;
const Architecture qwen3moe = {.name = "qwen3moe", .neox = true, .model = kModelTensors, .layer = kLayer, .read = read};

}  // namespace ellm::model::architectures
