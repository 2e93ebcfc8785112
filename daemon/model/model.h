// A loaded model: configuration, tokenizer, chat template and the repacked weights, locked in memory. Immutable after
// load; any thread.
#pragma once
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <stdexcept>
#include <string>
#include <thread>
#include <vector>

#include "daemon/format/chat_template.h"
#include "daemon/format/gguf.h"
#include "daemon/format/tokenizer.h"
#include "daemon/model/config.h"
#include "daemon/model/rope.h"
#include "daemon/model/weight_memory.h"
#include "kernels/kernel_set.h"

namespace ellm::model {

/// One expert of a mixture.
struct Expert {
  kernels::PanelMatrix gate, up;  // (its feed_forward, embedding)
  kernels::PanelMatrix down;      // (embedding, its feed_forward)
};

/// One transformer layer's weights. Norms and biases are f32.
struct Layer {
  const float* attention_norm;                                // (embedding)
  const float* feed_forward_norm;                             // (embedding)
  const float *post_attention_norm, *post_feed_forward_norm;  // (embedding), or null
  kernels::PanelMatrix q, k, v;                               // (heads*head_dim | kv_heads*head_dim, embedding)
  const float *q_bias, *k_bias, *v_bias;                      // or null
  const float *q_norm, *k_norm;                               // (head_dim), or null
  kernels::PanelMatrix attention_output;                      // (embedding, heads*head_dim)
  const float* attention_output_bias;                         // or null
  kernels::PanelMatrix gate, up;  // (feed_forward, embedding); without rows in a mixture of experts
  kernels::PanelMatrix down;      // (embedding, feed_forward)
  kernels::PanelMatrix router;    // (experts, embedding)
  std::vector<Expert> experts;
  kernels::PanelMatrix shared_gate;  // (1, embedding), without rows where there is no shared expert
  Expert shared_expert;
};

struct Weights {
  kernels::PanelMatrix token_embedding;  // (vocabulary, embedding)
  kernels::PanelMatrix output;           // the same memory where tied
  const float* output_norm;              // (embedding)
  std::vector<Layer> layers;
};

struct LoadOptions {
  runtime::MemoryPolicy memory = {};
  WeightPlace place = {};
  bool lock = true;                  // mlock; a failure is a warning
  bool require_lock = false;         // … or an error
  uint32_t threads = 1;              // that repack
  uint32_t context = 0;              // of requests; 0: what the model was trained for
  size_t memory_budget_bytes = 0;    // 0: what is available; refused with the sum before loading
  bool key_means = false;            // wanted: KV of int8 or int4
  std::string state_directory = {};  // where measured ones are kept; empty: nowhere
  bool float_weights = false;        // dequantised to F16, so that activations stay f32: to measure other errors
};

/// Why a model could not be loaded, in one line that names it.
class LoadError : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

class Collector;

class Model {
 public:
  /// Throws format::FormatError or LoadError.
  static std::shared_ptr<const Model> load(const std::string& path, const LoadOptions& options);
  static std::shared_ptr<const Model> load(std::shared_ptr<const format::Gguf> file, const LoadOptions& options);

  const ModelConfig& config() const { return config_; }
  const Weights& weights() const { return weights_; }
  const RopeTable& rope() const { return rope_; }
  /// Of the layers with a sliding window, where they have another than the rest; null otherwise.
  const RopeTable* window_rope() const { return window_rope_ ? &*window_rope_ : nullptr; }
  /// The mean of K before RoPE, (layers, kv_heads * head_dim); empty where it was not asked for (key_means.h).
  const std::vector<float>& key_means() const { return key_means_; }
  const std::shared_ptr<const format::Tokenizer>& tokenizer() const { return tokenizer_; }
  /// Null where the file has none; then `chat_template_error()` may say why it could not be parsed.
  const std::shared_ptr<const format::ChatTemplate>& chat_template() const { return chat_template_; }
  const std::string& chat_template_error() const { return chat_template_error_; }
  const std::string& path() const { return path_; }
  size_t weight_bytes() const { return weight_bytes_; }
  /// Where the weights stand, and whether an earlier process has left them.
  const WeightState& weight_state() const { return weight_state_; }
  /// Whether the weights are what was repacked; to be asked where an earlier process left them and the state does not
  /// vouch for them. Reads them once, on `threads` threads: about the time that one token takes.
  bool weights_intact(uint32_t threads) const;
  bool locked() const { return locked_; }
  uint64_t parameters() const { return parameters_; }
  uint64_t file_bytes() const { return file_bytes_; }
  /// "Q4_K 78 %, Q6_K 22 %"
  const std::string& weight_types() const { return weight_types_; }
  /// Warnings of the load (memory that could not be locked), for the log.
  const std::vector<std::string>& warnings() const { return warnings_; }

 private:
  Model() = default;
  void place_weights(const Collector& collector, const LoadOptions& options, const std::function<void()>& finish);

  std::string path_;
  ModelConfig config_;
  RopeTable rope_;
  std::optional<RopeTable> window_rope_;
  std::vector<float> key_means_;
  std::shared_ptr<const format::Tokenizer> tokenizer_;
  std::shared_ptr<const format::ChatTemplate> chat_template_;
  std::string chat_template_error_;
  std::optional<WeightMemory> memory_;
  std::vector<std::span<const std::byte>> pieces_;  // of it, as its checksums go
  WeightState weight_state_;
  Weights weights_;
  std::vector<std::string> warnings_;
  size_t weight_bytes_ = 0;
  uint64_t parameters_ = 0, file_bytes_ = 0;
  std::string weight_types_;
  bool locked_ = false;
  std::jthread page_cache_drop_;
};

}  // namespace ellm::model
