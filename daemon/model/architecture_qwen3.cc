// Qwen3: no biases, queries and keys normalised head by head.
#include "daemon/model/common_tensors.h"

namespace ellm::model::architectures {
namespace {
constexpr auto kLayer = join(kAttentionTensors, kHeadNormTensors, kFeedForwardTensors);
}  // namespace

extern const Architecture qwen3;
const Architecture qwen3 = {.name = "qwen3", .neox = true, .model = kModelTensors, .layer = kLayer};

}  // namespace ellm::model::architectures
