// Hyper-parameters first, each within bounds that keep later arithmetic in range; then every tensor of the file against
// the architecture's list. A tensor that the architecture does not have is refused: leaving it out would give wrong
// answers without a word.
#include "daemon/model/config.h"

#include <algorithm>
#include <cmath>

#include "daemon/format/inspect.h"
#include "daemon/model/architectures.h"
#include "daemon/model/config_reader.h"

namespace ellm::model {
namespace {

using format::Gguf;
using format::Tensor;
using kernels::WeightType;

constexpr uint32_t kMostLayers = 1u << 16, kMostHeads = 1u << 16, kLongestContext = 1u << 27;
constexpr uint32_t kSmallestHead = 8, kLargestHead = 256;

std::string file_stem(const std::string& path) {
  std::string name = path.substr(path.find_last_of('/') + 1);
  if (name.ends_with(".gguf")) name.resize(name.size() - 5);
  return name;
}

void read_heads(const ConfigReader& reader, ModelConfig& config) {
  config.heads = reader.get_size("attention.head_count", 1, kMostHeads);
  config.kv_heads = reader.find_size("attention.head_count_kv", 1, config.heads).value_or(config.heads);
  if (config.heads % config.kv_heads != 0)
    throw reader.error("attention.head_count_kv", std::to_string(config.kv_heads) + " does not divide the head count " +
                                                      std::to_string(config.heads));
  if (const auto head_dim = reader.find_size("attention.key_length", kSmallestHead, kLargestHead)) {
    config.head_dim = *head_dim;
  } else {
    config.head_dim = config.embedding / config.heads;
    if (config.embedding % config.heads != 0 || config.head_dim < kSmallestHead || config.head_dim > kLargestHead)
      throw reader.error("attention.head_count", "an embedding of " + std::to_string(config.embedding) + " in " +
                                                     std::to_string(config.heads) +
                                                     " heads, expected heads of 8 to 256 values without a rest");
  }
  reader.find_size("attention.value_length", config.head_dim, config.head_dim);
}

/// Keys that change the arithmetic in ways that no architecture here has.
void refuse_variants(const ConfigReader& reader, const ModelConfig& config) {
  if (config.experts == 0 && reader.find_size("expert_count", 0, UINT32_MAX).value_or(0) != 0)
    throw reader.error("expert_count", "mixtures of experts are not supported in architecture " + config.architecture);
  if (!reader.find_bool("attention.causal").value_or(true))
    throw reader.error("attention.causal", "false: the model does not generate text");
}

class TensorCheck {
 public:
  TensorCheck(const Gguf& file, const ModelConfig& config)
      : file_(file), config_(config), known_(file.tensors().size()) {}

  void check(const Architecture& architecture) {
    for (const TensorSpec& spec : architecture.model) check(spec, spec.name);
    for (uint32_t layer = 0; layer < config_.layers; layer++)
      for (const TensorSpec& spec : architecture.layer) check(spec, "blk." + std::to_string(layer) + "." + spec.name);
    for (size_t i = 0; i < known_.size(); i++)
      if (const std::string& name = file_.tensors()[i].name; !known_[i] && !harmless(name))
        throw file_.error("tensor " + format::quoted(name) + ": architecture " + architecture.name + " with " +
                          std::to_string(config_.layers) + (config_.layers == 1 ? " layer" : " layers") +
                          " has no such tensor");
  }

 private:
  /// Tables of angles that old conversions wrote and nobody reads.
  static bool harmless(std::string_view name) { return name.ends_with(".attn_rot_embd.weight"); }

  uint64_t extent(Extent e) const {
    switch (e) {
      case Extent::none: return 1;
      case Extent::embedding: return config_.embedding;
      case Extent::vocabulary: return config_.vocabulary;
      case Extent::queries: return uint64_t{config_.heads} * config_.head_dim;
      case Extent::keys: return uint64_t{config_.kv_heads} * config_.head_dim;
      case Extent::queries_keys_values: return extent(Extent::queries) + 2 * extent(Extent::keys);
      case Extent::feed_forward: return config_.feed_forward;
      case Extent::twice_feed_forward: return 2 * uint64_t{config_.feed_forward};
      case Extent::expert_feed_forward: return config_.expert_feed_forward;
      case Extent::shared_feed_forward: return config_.shared_feed_forward;
      case Extent::experts: return config_.experts;
      case Extent::head: return config_.head_dim;
      case Extent::rope_pairs: return config_.rope.dimensions / 2;
    }
    return 0;
  }

  void check(const TensorSpec& spec, const std::string& name);
  [[noreturn]] void wrong_shape(const Tensor& tensor, uint64_t columns, uint64_t rows, uint64_t depth) const;
  [[noreturn]] void wrong_type(const Tensor& tensor, bool vector) const;

  const Gguf& file_;
  const ModelConfig& config_;
  std::vector<bool> known_;  // by the tensor's place in the file
};

void TensorCheck::check(const TensorSpec& spec, const std::string& name) {
  const Tensor* tensor = file_.find_tensor(name);
  if (!tensor) {
    if (spec.need == Need::optional) return;
    throw file_.error("tensor " + format::quoted(name) + " is missing");
  }
  known_[static_cast<size_t>(tensor - file_.tensors().data())] = true;
  const uint64_t columns = extent(spec.columns), rows = extent(spec.rows), depth = extent(spec.depth);
  if (tensor->dims[0] != columns || tensor->rows() != rows * depth || (depth != 1 && tensor->dims[1] != rows))
    wrong_shape(*tensor, columns, rows, depth);
  const bool vector = spec.rows == Extent::none;
  const std::optional<WeightType> type = weight_type(*tensor->type);
  if (!type || (vector && kernels::is_quantised(*type))) wrong_type(*tensor, vector);
}

void TensorCheck::wrong_shape(const Tensor& tensor, uint64_t columns, uint64_t rows, uint64_t depth) const {
  std::string found;
  for (const uint64_t dim : tensor.dims) found += (found.empty() ? "" : " x ") + std::to_string(dim);
  throw file_.error("tensor " + format::quoted(tensor.name) + ": its shape is " + found + ", expected " +
                    std::to_string(columns) + (rows == 1 ? "" : " x " + std::to_string(rows)) +
                    (depth == 1 ? "" : " x " + std::to_string(depth)));
}

void TensorCheck::wrong_type(const Tensor& tensor, bool vector) const {
  std::string expected;
  for (const format::TensorType& type : format::tensor_types()) {
    const std::optional<WeightType> usable = weight_type(type);
    if (!usable || (vector && kernels::is_quantised(*usable))) continue;
    expected += (expected.empty() ? "" : ", ") + std::string(type.name);
  }
  throw file_.error("tensor " + format::quoted(tensor.name) + ": type " + tensor.type->name +
                    " is not supported for a " + (vector ? "vector" : "weight matrix") + ", expected one of " +
                    expected);
}

/// The vocabulary is as large as the embedding table; the tokenizer must agree.
uint32_t read_vocabulary(const Gguf& file) {
  const Tensor* table = file.find_tensor("token_embd.weight");
  if (!table) throw file.error("tensor 'token_embd.weight' is missing");
  const uint64_t rows = table->rows();
  if (rows > kWidest)
    throw file.error("tensor 'token_embd.weight': " + std::to_string(rows) + " rows, expected at most " +
                     std::to_string(kWidest));
  const auto* tokens = file.find_strings("tokenizer.ggml.tokens");
  if (tokens && tokens->size() != rows)
    throw file.error("key 'tokenizer.ggml.tokens': " + std::to_string(tokens->size()) + " tokens, expected " +
                     std::to_string(rows) + ", the rows of tensor 'token_embd.weight'");
  return static_cast<uint32_t>(rows);
}

void read_names(const Gguf& file, ModelConfig& config) {
  config.name = file.find_string("general.name").value_or("");
  if (config.name.empty()) config.name = file_stem(file.path());
  config.size_label = file.find_string("general.size_label").value_or("");
  if (config.size_label.empty()) config.size_label = format::size_label(format::parameter_count(file));
}

}  // namespace

std::optional<WeightType> weight_type(const format::TensorType& type) {
  for (const WeightType known : kernels::kWeightTypes) {
    if (static_cast<uint32_t>(known) == type.id) return known;
  }
  return std::nullopt;
}

ModelConfig read_config(const Gguf& file, uint32_t context) {
  ModelConfig config;
  config.architecture = file.get_string("general.architecture");
  const Architecture* architecture = find_architecture(config.architecture);
  if (!architecture)
    throw file.error("key 'general.architecture': unknown architecture " + format::quoted(config.architecture) +
                     ", expected one of " + architecture_names());
  const ConfigReader reader(file, config.architecture);
  config.layers = reader.get_size("block_count", 1, kMostLayers);
  config.embedding = reader.get_size("embedding_length", 1, kWidest);
  config.feed_forward = reader.get_size("feed_forward_length", 1, kWidest);
  config.context = reader.get_size("context_length", 1, kLongestContext);
  read_heads(reader, config);
  config.norm_epsilon = static_cast<float>(reader.get_number("attention.layer_norm_rms_epsilon", 1e-20, 1));
  config.vocabulary = read_vocabulary(file);
  if (context == 0 || context > config.context) context = config.context;
  config.rope = read_rope_config(reader, config.head_dim, config.context, context);
  config.rope.neox = architecture->neox;
  config.attention_scale = 1 / std::sqrt(static_cast<float>(config.head_dim));
  if (architecture->read) architecture->read(reader, config);
  refuse_variants(reader, config);
  TensorCheck(file, config).check(*architecture);
  config.tied_output = !file.find_tensor("output.weight");
  config.qkv_bias = std::any_of(file.tensors().begin(), file.tensors().end(), [](const Tensor& tensor) {
    return tensor.name.ends_with("attn_q.bias") || tensor.name.ends_with("attn_k.bias") ||
           tensor.name.ends_with("attn_v.bias");
  });
  read_names(file, config);
  return config;
}

}  // namespace ellm::model
