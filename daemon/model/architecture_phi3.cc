// Phi-3, Phi-3.5 and Phi-4: one tensor holds the rows of Q, K and V, another those of gate and up. Long contexts
// stretch RoPE by factors of each pair ("longrope"), which are another set for short ones. All layers have the file's
// sliding window, as in Hugging Face's transformers (a query sees `sliding_window` tokens, itself among them); only
// Phi-3-mini and -medium with contexts of 4K have one that is shorter than the context, 2047. llama.cpp ignores it
// since its pull request 13676.
#include "daemon/model/common_tensors.h"
#include "daemon/model/config_reader.h"

namespace ellm::model::architectures {
namespace {

constexpr auto kModel = join(kModelTensors, std::array{
                                                TensorSpec{"rope_factors_long.weight", rope_pairs, none, optional},
                                                TensorSpec{"rope_factors_short.weight", rope_pairs, none, optional},
                                            });
constexpr std::array kLayer = {
    TensorSpec{"attn_norm.weight", embedding, none, required},
    TensorSpec{"attn_qkv.weight", embedding, queries_keys_values, required},
    TensorSpec{"attn_output.weight", queries, embedding, required},
    TensorSpec{"ffn_norm.weight", embedding, none, required},
    TensorSpec{"ffn_up.weight", embedding, twice_feed_forward, required},
    TensorSpec{"ffn_down.weight", feed_forward, embedding, required},
};

void read(const ConfigReader& reader, ModelConfig& config) {
  config.window = read_window(reader).value_or(0);
  if (config.window >= config.context) config.window = 0;  // Phi-4 writes its context's size
}

}  // namespace

extern const Architecture phi3;
const Architecture phi3 = {.name = "phi3", .neox = true, .model = kModel, .layer = kLayer, .read = read};

}  // namespace ellm::model::architectures
