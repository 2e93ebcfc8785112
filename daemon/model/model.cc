// Loading: checks the file, adds up the memory, and takes over the weights that an earlier process repacked, or repacks
// them.
#include "daemon/model/model.h"

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <future>
#include <map>
#include <new>

#include "daemon/format/inspect.h"
#include "daemon/model/collector.h"
#include "daemon/model/key_means.h"
#include "daemon/model/threads.h"

namespace ellm::model {
namespace {

void collect_qkv(Collector& c, const ModelConfig& config, const std::string& blk, Layer& l) {
  if (c.has(blk + "attn_qkv.weight")) {
    const uint64_t queries = uint64_t{config.heads} * config.head_dim,
                   keys = uint64_t{config.kv_heads} * config.head_dim;
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

/// Biases, or what an earlier load measured, or a measurement: always of the weights as they serve.
std::vector<float> find_key_means(const std::shared_ptr<const Model>& model, const LoadOptions& options) {
  std::vector<float> means = key_biases(*model);
  if (means.empty() && !options.state_directory.empty()) means = read_key_means(options.state_directory, *model);
  if (!means.empty()) return means;
  if (options.float_weights) {
    LoadOptions as_served = options;
    as_served.float_weights = false;
    return Model::load(model->path(), as_served)->key_means();
  }
  means = measure_key_means(model, options.threads);
  if (!options.state_directory.empty()) write_key_means(options.state_directory, *model, means);
  return means;
}

std::string megabytes(size_t bytes) { return std::to_string((bytes + (1 << 20) - 1) >> 20) + " MiB"; }

/// The tensors' pages have served: the weights must not stand in memory twice. What stands before them is wanted again
/// when the daemon starts anew.
void drop_page_cache(const format::Gguf& file) {
  std::map<uint32_t, uint64_t> first;  // tensor's offset by part
  for (const format::Tensor& tensor : file.tensors()) {
    const auto [at, fresh] = first.try_emplace(tensor.part, tensor.offset);
    if (!fresh) at->second = std::min(at->second, tensor.offset);
  }
  const std::vector<std::string> paths = file.part_paths();
  for (const auto& [part, offset] : first) {
    const int fd = ::open(paths[part].c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK);
    if (fd < 0) continue;
    ::posix_fadvise(fd, static_cast<off_t>(offset), 0, POSIX_FADV_DONTNEED);
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
  // Beside the weights: a vocabulary keeps one thread busy for as long as a gigabyte of them does two.
  auto tokenizer = std::async(std::launch::async, [&] { return format::Tokenizer::open(*file); });
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
  model->weight_bytes_ = collector.matrix_bytes();
  model->place_weights(collector, options, [&] {
    model->tokenizer_ = tokenizer.get();
    file->check_unchanged();
  });
  if (options.lock) {
    if (auto problem = runtime::lock_memory(model->memory_->data(), collector.bytes()); problem) {
      if (options.require_lock) throw LoadError(path + ": " + *problem);
      model->warnings_.push_back(path + ": " + *problem);
    } else {
      model->locked_ = true;
    }
  }
  if (model->config_.tied_output) model->weights_.output = model->weights_.token_embedding;
  // Behind whoever waits for the model: it takes as long as a fifth of all else.
  if (!model->weight_state_.taken_over) model->page_cache_drop_ = std::jthread([file] { drop_page_cache(*file); });
  file.reset();
  if (options.key_means) model->key_means_ = find_key_means(model, options);
  return model;
}

/// Takes them over, or makes them. `finish` may throw, as long as nothing was made that a later process finds.
void Model::place_weights(const Collector& collector, const LoadOptions& options, const std::function<void()>& finish) {
  WeightPlace place = options.place;
  place.fingerprint += collector.layout();
  const size_t need = collector.bytes(), pieces = collector.pieces();
  if (auto found = WeightMemory::find(place, need, pieces, options.threads, weight_state_)) {
    memory_.emplace(std::move(*found));
    finish();
  } else {
    const size_t have =
        options.memory_budget_bytes != 0 ? options.memory_budget_bytes : runtime::available_memory_bytes();
    if (need > have)
      throw LoadError(path_ + ": the weights need " + megabytes(need) + " of memory, " + megabytes(have) +
                      " are available");
    const auto populate = [this](size_t first, size_t end) { return memory_->populate(first, end); };
    try {
      memory_.emplace(WeightMemory::make(place, need, pieces, options.memory, weight_state_));
      if (const int error = collector.fill(memory_->data(), memory_->checks(), options.threads, populate)) {
        memory_->become_private(error, need, options.memory, weight_state_);
        collector.fill(memory_->data(), memory_->checks(), options.threads, populate);
      }
    } catch (const std::bad_alloc&) {
      throw LoadError(path_ + ": cannot map " + megabytes(need) + " of memory for the weights");
    }
    finish();
    memory_->seal(weight_state_);
  }
  collector.place(memory_->data());
  if (!memory_->checks().empty()) pieces_ = collector.pieces_of(memory_->data());
}

bool Model::weights_intact(uint32_t threads) const {
  std::atomic<bool> intact = true;
  const auto checks = memory_->checks();
  on_threads(threads, checks.size(), [&](uint64_t i) {
    if (intact && Collector::checksum(pieces_[i]) != checks[i]) intact = false;
  });
  return intact;
}

}  // namespace ellm::model
