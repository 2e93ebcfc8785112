#include "tools/bench/synthetic.h"

#include <cmath>
#include <cstdio>
#include <filesystem>
#include <stdexcept>

#include "tools/bench/mixture.h"
#include "tools/bench/random_weights.h"

namespace ellm::bench {
namespace {

using kernels::WeightType;

class Planner {
 public:
  explicit Planner(const ShapeRequest& r) : shape_(r.shape), mix_(find_mixture(r.mix).value()) {}

  std::vector<TensorPlan> run() {
    const Shape& s = shape_;
    matrix("", "token_embd.weight", s.embedding, s.vocabulary);
    if (s.llama3_factor != 0) vector("rope_freqs.weight", s.head_dim / 2);
    for (layer_ = 0; layer_ < s.layers; ++layer_) layer("blk." + std::to_string(layer_) + ".");
    vector("output_norm.weight", s.embedding);
    if (!s.tied) matrix("", "output.weight", s.embedding, s.vocabulary);
    return std::move(plans_);
  }

 private:
  void vector(const std::string& name, uint64_t n) { plans_.push_back({name, {n}, WeightType::f32}); }
  void matrix(const std::string& prefix, const std::string& role, uint64_t columns, uint64_t rows, uint64_t depth = 1) {
    std::vector<uint64_t> dims = {columns, rows};
    if (depth > 1) dims.push_back(depth);
    plans_.push_back({prefix + role, dims, tensor_type(mix_, shape_, role, layer_, columns)});
  }
  void layer(const std::string& at) {
    const Shape& s = shape_;
    const uint64_t queries = uint64_t{s.heads} * s.head_dim, keys = uint64_t{s.kv_heads} * s.head_dim;
    vector(at + "attn_norm.weight", s.embedding);
    if (s.architecture == "phi3") {
      matrix(at, "attn_qkv.weight", s.embedding, queries + 2 * keys);
    } else {
      matrix(at, "attn_q.weight", s.embedding, queries);
      matrix(at, "attn_k.weight", s.embedding, keys);
      matrix(at, "attn_v.weight", s.embedding, keys);
    }
    if (s.architecture == "qwen2") {
      vector(at + "attn_q.bias", queries), vector(at + "attn_k.bias", keys), vector(at + "attn_v.bias", keys);
    }
    if (s.architecture.starts_with("qwen3") || s.architecture == "gemma3") {
      vector(at + "attn_q_norm.weight", s.head_dim), vector(at + "attn_k_norm.weight", s.head_dim);
    }
    matrix(at, "attn_output.weight", queries, s.embedding);
    if (s.architecture.starts_with("gemma")) {
      vector(at + "post_attention_norm.weight", s.embedding), vector(at + "post_ffw_norm.weight", s.embedding);
    }
    vector(at + "ffn_norm.weight", s.embedding);
    if (s.experts == 0) feed_forward(at);
    else experts(at);
  }
  void feed_forward(const std::string& at) {
    const Shape& s = shape_;
    if (s.architecture == "phi3") {
      matrix(at, "ffn_up.weight", s.embedding, 2 * s.feed_forward);  // gate and up
    } else {
      matrix(at, "ffn_gate.weight", s.embedding, s.feed_forward);
      matrix(at, "ffn_up.weight", s.embedding, s.feed_forward);
    }
    matrix(at, "ffn_down.weight", s.feed_forward, s.embedding);
  }
  void experts(const std::string& at) {
    const Shape& s = shape_;
    matrix(at, "ffn_gate_inp.weight", s.embedding, s.experts);
    matrix(at, "ffn_gate_exps.weight", s.embedding, s.expert_feed_forward, s.experts);
    matrix(at, "ffn_up_exps.weight", s.embedding, s.expert_feed_forward, s.experts);
    matrix(at, "ffn_down_exps.weight", s.expert_feed_forward, s.embedding, s.experts);
  }

  const Shape& shape_;
  Mixture mix_;
  uint32_t layer_ = 0;
  std::vector<TensorPlan> plans_;
};

/// Llama 3's divisors of the RoPE frequencies (transformers, _compute_llama3_parameters: low 1, high 4, 8,192 tokens
/// before).
void rope_factors(const Shape& s, std::span<float> to) {
  constexpr double kLow = 1, kHigh = 4, kBefore = 8192;
  for (size_t i = 0; i < to.size(); ++i) {
    const double wave = 2 * M_PI * std::pow(s.rope_base, 2.0 * static_cast<double>(i) / s.head_dim);
    const double smooth = (kBefore / wave - kLow) / (kHigh - kLow);
    const double factor = wave < kBefore / kHigh  ? 1
                          : wave > kBefore / kLow ? s.llama3_factor
                                                  : 1 / ((1 - smooth) / s.llama3_factor + smooth);
    to[i] = static_cast<float>(factor);
  }
}

/// A byte-level vocabulary that tokenizes any text: GPT-2's 256 byte characters, pairs of lower-case letters with a
/// merge each, and tokens that no text gives up to the model's number.
void add_tokenizer(GgufWriter& file, uint32_t vocabulary) {
  std::vector<std::string> tokens, merges;
  int next = 0x100;
  for (int b = 0; b < 256; ++b) {
    const bool printable = (b >= 0x21 && b <= 0x7E) || (b >= 0xA1 && b <= 0xAC) || b >= 0xAE;
    const int c = printable ? b : next++;
    tokens.push_back(c < 0x80 ? std::string(1, static_cast<char>(c))
                              : std::string{static_cast<char>(0xC0 | c >> 6), static_cast<char>(0x80 | (c & 0x3F))});
  }
  const std::string space = tokens[' '];
  for (char a = 'a' - 1; a <= 'z'; ++a) {
    for (char b = 'a'; b <= 'z'; ++b) {
      const std::string first = a < 'a' ? space : std::string(1, a);
      tokens.push_back(first + b);
      merges.push_back(first + " " + b);
    }
  }
  std::vector<int32_t> kinds(tokens.size(), 1);           // normal
  tokens.push_back("<|endoftext|>"), kinds.push_back(3);  // control
  const uint32_t end = static_cast<uint32_t>(tokens.size() - 1);
  while (tokens.size() < vocabulary)
    tokens.push_back("<|unused_" + std::to_string(tokens.size()) + "|>"), kinds.push_back(5);
  file.add("tokenizer.ggml.model", "gpt2");
  file.add("tokenizer.ggml.pre", "qwen2");
  file.add("tokenizer.ggml.tokens", std::span<const std::string>(tokens));
  file.add("tokenizer.ggml.token_type", std::span<const int32_t>(kinds));
  file.add("tokenizer.ggml.merges", std::span<const std::string>(merges));
  file.add("tokenizer.ggml.eos_token_id", end);
  file.add("tokenizer.ggml.add_bos_token", false);
}

GgufWriter describe(const ShapeRequest& r) {
  const Shape& s = r.shape;
  GgufWriter file;
  const auto key = [&](const char* name) { return s.architecture + "." + name; };
  file.add("general.architecture", s.architecture);
  // llama.cpp looks for tokens of Phi-3's own where this name says that it is one.
  file.add("general.name", s.architecture == "phi3" ? "random weights" : r.label() + " with random weights");
  file.add("general.file_type", file_type(find_mixture(r.mix).value()));
  file.add("general.quantization_version", 2u);
  file.add(key("block_count"), s.layers);
  file.add(key("context_length"), s.context);
  file.add(key("embedding_length"), s.embedding);
  file.add(key("feed_forward_length"), s.feed_forward);
  file.add(key("attention.head_count"), s.heads);
  file.add(key("attention.head_count_kv"), s.kv_heads);
  file.add(key("attention.key_length"), s.head_dim);
  file.add(key("attention.value_length"), s.head_dim);
  file.add(key("attention.layer_norm_rms_epsilon"), 1e-5f);
  file.add(key("rope.dimension_count"), s.head_dim);
  file.add(key("rope.freq_base"), static_cast<float>(s.rope_base));
  file.add(key("vocab_size"), s.vocabulary);
  if (s.window > 0) file.add(key("attention.sliding_window"), s.window);
  if (s.architecture == "gemma2") {
    file.add(key("attn_logit_softcapping"), 50.0f);
    file.add(key("final_logit_softcapping"), 30.0f);
  }
  if (s.experts > 0) {
    file.add(key("expert_count"), s.experts);
    file.add(key("expert_used_count"), s.experts_used);
    file.add(key("expert_feed_forward_length"), s.expert_feed_forward);
  }
  add_tokenizer(file, s.vocabulary);
  return file;
}

void fill(const Shape& s, const TensorPlan& t, Random& random, std::span<std::byte> to) {
  const std::span<float> floats(reinterpret_cast<float*>(to.data()), to.size() / sizeof(float));
  if (t.name == "rope_freqs.weight") return rope_factors(s, floats);
  if (t.name.ends_with("norm.weight")) {
    for (float& x : floats) x = 1 + random.uniform() * 0.1f;
    return;
  }
  const bool bias = t.name.ends_with(".bias"), table = t.name == "token_embd.weight";
  random_weights(t.type, bias || table ? 0.05f : 1 / std::sqrt(static_cast<float>(t.dims[0])), random, to);
}

}  // namespace

std::vector<TensorPlan> plan_tensors(const ShapeRequest& request) { return Planner(request).run(); }

std::string synthesise(const ShapeRequest& request, const std::string& directory) {
  const std::vector<TensorPlan> tensors = plan_tensors(request);
  const GgufWriter file = describe(request);
  // The name holds what the file is made of: a custom shape's digest, and a number that rises when this code changes.
  std::string parts = "1";
  for (const TensorPlan& t : tensors) {
    parts += t.name + std::to_string(static_cast<uint32_t>(t.type));
    for (const uint64_t d : t.dims) parts += "," + std::to_string(d);
  }
  parts += std::to_string(request.shape.rope_base) + std::to_string(request.shape.experts_used) +
           std::to_string(request.shape.heads);
  if (request.shape.window != 0) parts += std::to_string(request.shape.window);
  uint32_t hash = 2166136261;  // FNV-1a
  for (const char c : parts) hash = (hash ^ static_cast<uint8_t>(c)) * 16777619;
  char digest[12];
  std::snprintf(digest, sizeof digest, "%08x", hash);
  std::filesystem::create_directories(directory);
  const std::string path = directory + "/" + request.shape.name + "-" + request.mix + "-" + digest + ".gguf";
  const uint64_t bytes = file.file_bytes(tensors);
  if (std::filesystem::exists(path) && std::filesystem::file_size(path) == bytes) return path;
  if (const uint64_t free = std::filesystem::space(directory).available; free < bytes + (64 << 20))
    throw std::runtime_error(request.label() + " needs " + std::to_string(bytes >> 20) + " MB in " + directory +
                             ", which has " + std::to_string(free >> 20) + "; --shape-directory names another place");
  Random random(1);
  file.write(path, tensors, [&](const TensorPlan& t, std::span<std::byte> to) { fill(request.shape, t, random, to); });
  return path;
}

}  // namespace ellm::bench
