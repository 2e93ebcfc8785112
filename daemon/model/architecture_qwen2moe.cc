// Qwen1.5-MoE and Qwen2-MoE: Qwen2 with a mixture of experts, one of which every token uses, weighted by a gate of its
// own.
#include "daemon/model/common_tensors.h"
#include "daemon/model/config_reader.h"

namespace ellm::model::architectures {
namespace {

constexpr auto kLayer = join(kAttentionTensors, bias_tensors(required), kExpertTensors, kSharedExpertTensors);

void read(const ConfigReader& reader, ModelConfig& config) {
  read_experts(reader, config);
  config.shared_feed_forward =
      reader.find_size("expert_shared_feed_forward_length", 1, kWidest).value_or(config.feed_forward);
}

}  // namespace

extern const Architecture qwen2moe;
const Architecture qwen2moe = {.name = "qwen2moe", .neox = true, .model = kModelTensors, .layer = kLayer, .read = read};

}  // namespace ellm::model::architectures
