// Loading: checks the file, adds up the memory, maps one region and repacks every matrix into it on several threads.
#include "daemon/model/model.h"

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cstring>
#include <exception>
#include <mutex>
#include <thread>

#include "daemon/format/inspect.h"
#include "daemon/model/key_means.h"
#include "kernels/blocks.h"

namespace ellm::model {
namespace {

using format::Tensor;
using kernels::PanelMatrix;
using kernels::WeightType;

/// A matrix that waits for its place in the region.
struct Pending {
  const Tensor* tensor;
  uint64_t first_row;      // of the tensor's
  PanelMatrix* target;
  size_t offset;
};

/// Collects what a model needs from its file: matrices to repack, vectors to widen to f32.
class Collector {
 public:
  Collector(const format::Gguf& file, bool float_weights) : file_(file), float_weights_(float_weights) {}

  bool has(const std::string& name) const { return file_.find_tensor(name) != nullptr; }

  void matrix(const std::string& name, PanelMatrix* target) { rows(name, 0, find(name).rows(), target); }

  /// `count` of a tensor's rows as a matrix of its own.
  void rows(const std::string& name, uint64_t first, uint64_t count, PanelMatrix* target) {
    const Tensor& tensor = find(name);
    const auto stored = static_cast<WeightType>(tensor.type->id);
    const WeightType type = float_weights_ && kernels::is_quantised(stored) ? WeightType::f16 : stored;
    const auto cols = static_cast<uint32_t>(tensor.dims[0]);
    *target = {type, static_cast<uint32_t>(count), cols, nullptr, kernels::panel_bytes(type, cols)};
    matrices_.push_back({&tensor, first, target, bytes_});
    bytes_ += target->panel_bytes * target->panels();
  }

  /// A norm or bias as f32; null where the file has none.
  void vector(const std::string& name, const float** target) {
    *target = nullptr;
    const Tensor* tensor = file_.find_tensor(name);
    if (tensor == nullptr) return;
    vectors_.push_back({tensor, target});
    vector_floats_ += tensor->elements();
  }

  size_t matrix_bytes() const { return bytes_; }
  size_t vector_floats() const { return vector_floats_; }

  void place_vectors(std::vector<float>& memory) const {
    memory.resize(vector_floats_);
    float* at = memory.data();
    std::vector<std::byte> stored;
    for (const auto& [tensor, target] : vectors_) {
      stored.resize(tensor->data.size());
      file_.read(*tensor, 0, stored);
      kernels::dequantize(static_cast<WeightType>(tensor->type->id), stored.data(), tensor->elements(), at);
      *target = at;
      at += tensor->elements();
    }
  }

  /// Repacks on `threads` threads, in pieces of a few panels. The file is read, not mapped, so that one that is cut short
  /// meanwhile is an error of this load and no signal for the whole process.
  void place_matrices(std::byte* memory, uint32_t threads) const {
    for (const Pending& p : matrices_) p.target->data = memory + p.offset;
    std::atomic<uint64_t> next = 0;
    std::vector<uint64_t> first_piece;
    uint64_t pieces = 0;
    for (const Pending& p : matrices_) {
      first_piece.push_back(pieces);
      pieces += (p.target->panels() + kPiece - 1) / kPiece;
    }
    std::mutex failure_mutex;
    std::exception_ptr failure;   // the first
    const auto work = [&]() noexcept {
      try {
        std::vector<std::byte> rows;
        for (uint64_t i; (i = next.fetch_add(1)) < pieces;) {
          const size_t m = std::upper_bound(first_piece.begin(), first_piece.end(), i) - first_piece.begin() - 1;
          place_piece(matrices_[m], static_cast<uint32_t>(i - first_piece[m]) * kPiece, memory, rows);
        }
      } catch (...) {
        next = pieces;
        const std::lock_guard lock(failure_mutex);
        if (!failure) failure = std::current_exception();
      }
    };
    {
      std::vector<std::jthread> helpers;
      for (uint32_t t = 1; t < threads; ++t) helpers.emplace_back(work);
      work();
    }
    if (failure) std::rethrow_exception(failure);
  }

 private:
  const Tensor& find(const std::string& name) const {
    const Tensor* tensor = file_.find_tensor(name);
    if (tensor == nullptr) throw file_.error("tensor '" + name + "' is missing");
    return *tensor;
  }

  static constexpr uint32_t kPiece = 16;   // panels

  /// Reads the rows of panels [first, first + kPiece) into `rows` and repacks them.
  void place_piece(const Pending& p, uint32_t first, std::byte* memory, std::vector<std::byte>& rows) const {
    const uint64_t row_bytes = p.tensor->data.size() / p.tensor->rows();
    const uint32_t first_row = first * kernels::kPanelRows;
    PanelMatrix piece = *p.target;
    piece.rows = std::min(kPiece * kernels::kPanelRows, piece.rows - first_row);
    rows.resize(piece.rows * row_bytes);
    file_.read(*p.tensor, (p.first_row + first_row) * row_bytes, rows);
    if (const auto stored = static_cast<WeightType>(p.tensor->type->id); stored != piece.type) rows = as_halves(stored, rows, piece);
    std::byte* to = memory + p.offset + first * piece.panel_bytes;
    piece.data = to;
    kernels::repack(piece, to, rows.data(), 0, piece.panels());
  }

  static std::vector<std::byte> as_halves(WeightType stored, const std::vector<std::byte>& rows, const PanelMatrix& piece) {
    const size_t n = size_t{piece.rows} * piece.cols;
    std::vector<float> values(n);
    std::vector<std::byte> halves(2 * n);
    kernels::dequantize(stored, rows.data(), n, values.data());
    if (!kernels::quantize(WeightType::f16, values.data(), n, halves.data())) throw std::logic_error("no F16");
    return halves;
  }

  const format::Gguf& file_;
  const bool float_weights_;
  std::vector<Pending> matrices_;
  std::vector<std::pair<const Tensor*, const float**>> vectors_;
  size_t bytes_ = 0, vector_floats_ = 0;
};

void collect_qkv(Collector& c, const ModelConfig& config, const std::string& blk, Layer& l) {
  if (c.has(blk + "attn_qkv.weight")) {
    const uint64_t queries = uint64_t{config.heads} * config.head_dim, keys = uint64_t{config.kv_heads} * config.head_dim;
    c.rows(blk + "attn_qkv.weight", 0, queries, &l.q);
    c.rows(blk + "attn_qkv.weight", queries, keys, &l.k);
    c.rows(blk + "attn_qkv.weight", queries + keys, keys, &l.v);
    return;
  }
  c.matrix(blk + "attn_q.weight", &l.q);
  c.matrix(blk + "attn_k.weight", &l.k);
  c.matrix(blk + "attn_v.weight", &l.v);
}

void collect_experts(Collector& c, const ModelConfig& config, const std::string& blk, Layer& l) {
  const uint64_t hidden = config.expert_feed_forward;
  c.matrix(blk + "ffn_gate_inp.weight", &l.router);
  l.experts.resize(config.experts);
  for (uint32_t e = 0; e < config.experts; ++e) {
    c.rows(blk + "ffn_gate_exps.weight", e * hidden, hidden, &l.experts[e].gate);
    c.rows(blk + "ffn_up_exps.weight", e * hidden, hidden, &l.experts[e].up);
    c.rows(blk + "ffn_down_exps.weight", uint64_t{e} * config.embedding, config.embedding, &l.experts[e].down);
  }
  if (config.shared_feed_forward == 0) return;
  c.matrix(blk + "ffn_gate_inp_shexp.weight", &l.shared_gate);
  c.matrix(blk + "ffn_gate_shexp.weight", &l.shared_expert.gate);
  c.matrix(blk + "ffn_up_shexp.weight", &l.shared_expert.up);
  c.matrix(blk + "ffn_down_shexp.weight", &l.shared_expert.down);
}

void collect_feed_forward(Collector& c, const ModelConfig& config, const std::string& blk, Layer& l) {
  if (config.experts != 0) return collect_experts(c, config, blk, l);
  if (c.has(blk + "ffn_gate.weight")) {
    c.matrix(blk + "ffn_gate.weight", &l.gate);
    c.matrix(blk + "ffn_up.weight", &l.up);
  } else {
    c.rows(blk + "ffn_up.weight", 0, config.feed_forward, &l.gate);
    c.rows(blk + "ffn_up.weight", config.feed_forward, config.feed_forward, &l.up);
  }
  c.matrix(blk + "ffn_down.weight", &l.down);
}

void collect(Collector& c, const ModelConfig& config, Weights& w) {
  c.matrix("token_embd.weight", &w.token_embedding);
  c.vector("output_norm.weight", &w.output_norm);
  if (!config.tied_output) c.matrix("output.weight", &w.output);
  w.layers.resize(config.layers);
  for (uint32_t i = 0; i < config.layers; ++i) {
    const std::string blk = "blk." + std::to_string(i) + ".";
    Layer& l = w.layers[i];
    c.vector(blk + "attn_norm.weight", &l.attention_norm);
    c.vector(blk + "ffn_norm.weight", &l.feed_forward_norm);
    collect_qkv(c, config, blk, l);
    c.matrix(blk + "attn_output.weight", &l.attention_output);
    c.vector(blk + "post_attention_norm.weight", &l.post_attention_norm);
    c.vector(blk + "post_ffw_norm.weight", &l.post_feed_forward_norm);
    c.vector(blk + "attn_q_norm.weight", &l.q_norm);
    c.vector(blk + "attn_k_norm.weight", &l.k_norm);
    c.vector(blk + "attn_q.bias", &l.q_bias);
    c.vector(blk + "attn_k.bias", &l.k_bias);
    c.vector(blk + "attn_v.bias", &l.v_bias);
    c.vector(blk + "attn_output.bias", &l.attention_output_bias);
    collect_feed_forward(c, config, blk, l);
  }
}

/// Biases, or what an earlier load measured, or a measurement.
std::vector<float> find_key_means(const std::shared_ptr<const Model>& model, const LoadOptions& options) {
  std::vector<float> means = key_biases(*model);
  if (means.empty() && !options.state_directory.empty()) means = read_key_means(options.state_directory, *model);
  if (!means.empty()) return means;
  means = measure_key_means(model, options.threads);
  if (!options.state_directory.empty()) write_key_means(options.state_directory, *model, means);
  return means;
}

std::string megabytes(size_t bytes) { return std::to_string((bytes + (1 << 20) - 1) >> 20) + " MiB"; }

/// The file's pages have served: the weights must not stand in memory twice.
void drop_page_cache(const std::vector<std::string>& paths) {
  for (const std::string& path : paths) {
    const int fd = ::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK);
    if (fd < 0) continue;
    ::posix_fadvise(fd, 0, 0, POSIX_FADV_DONTNEED);
    ::close(fd);
  }
}

}  // namespace

std::shared_ptr<const Model> Model::load(const std::string& path, const LoadOptions& options) {
  return load(format::Gguf::open(path), options);
}

std::shared_ptr<const Model> Model::load(std::shared_ptr<const format::Gguf> file, const LoadOptions& options) {
  const std::string path = file->path();
  std::shared_ptr<Model> model(new Model);
  model->path_ = path;
  model->config_ = read_config(*file, options.context);
  model->tokenizer_ = format::Tokenizer::open(*file);
  model->rope_ = make_rope_table(model->config_.rope);
  if (model->config_.window_rope) model->window_rope_ = make_rope_table(*model->config_.window_rope);
  model->parameters_ = format::parameter_count(*file);
  model->file_bytes_ = file->file_bytes();
  model->weight_types_ = format::describe_weight_types(*file);
  if (const format::Value* source = file->find("tokenizer.chat_template"); source != nullptr) {
    try {
      model->chat_template_ = format::ChatTemplate::parse(file->get_string("tokenizer.chat_template"));
    } catch (const std::runtime_error& e) {
      model->chat_template_error_ = e.what();
    }
  }

  Collector collector(*file, options.float_weights);
  collect(collector, model->config_, model->weights_);
  const size_t need = collector.matrix_bytes();
  const size_t have = options.memory_budget_bytes != 0 ? options.memory_budget_bytes : runtime::available_memory_bytes();
  if (need > have) {
    throw LoadError(path + ": the weights need " + megabytes(need) + " of memory, " + megabytes(have) + " are available");
  }
  try {
    model->region_ = runtime::Region::map(need, options.memory);
  } catch (const std::bad_alloc&) {
    throw LoadError(path + ": cannot map " + megabytes(need) + " of memory for the weights");
  }
  collector.place_vectors(model->vectors_);
  collector.place_matrices(model->region_.data(), options.threads);
  file->check_unchanged();
  if (options.lock) {
    if (auto problem = model->region_.lock(); problem) {
      if (options.require_lock) throw LoadError(path + ": " + *problem);
      model->warnings_.push_back(path + ": " + *problem);
    } else {
      model->locked_ = true;
    }
  }
  if (model->config_.tied_output) model->weights_.output = model->weights_.token_embedding;
  const std::vector<std::string> paths = file->part_paths();
  file.reset();
  drop_page_cache(paths);
  if (options.key_means) model->key_means_ = find_key_means(model, options);
  return model;
}

}  // namespace ellm::model
