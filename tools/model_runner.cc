// See model_runner.h.
#include "tools/model_runner.h"

#include <algorithm>
#include <stdexcept>

namespace ellm::tools {

ModelRunner::ModelRunner(std::shared_ptr<const model::Model> model, const RunnerOptions& options)
    : ModelRunner(std::move(model), options, model::choose_kernels(options.kernels)) {}

ModelRunner::ModelRunner(std::shared_ptr<const model::Model> model, const RunnerOptions& options,
                         const kernels::KernelSet& kernels)
    : ModelRunner(std::move(model), options, kernels, nullptr) {}

ModelRunner::ModelRunner(std::shared_ptr<const model::Model> model, const RunnerOptions& options,
                         runtime::WorkerPool& pool)
    : ModelRunner(std::move(model), options, model::choose_kernels(options.kernels), &pool) {}

ModelRunner::ModelRunner(std::shared_ptr<const model::Model> model, const RunnerOptions& options,
                         const kernels::KernelSet& kernels, runtime::WorkerPool* shared)
    : model_(std::move(model)), kernels_(kernels) {
  if (shared == nullptr) shared = &own_pool_.emplace(runtime::read_topology(), options.threads);
  kv_ = shm::KvPages::create({.geometry = model::page_geometry(model_->config(), options.kv_type),
                              .pages = options.pages,
                              .fingerprint = "runner"});
  forward_ = std::make_unique<model::ForwardPass>(model_, kernels_, *shared, *kv_, options.max_rows, options.max_rows);
}

std::span<const float> ModelRunner::step(std::span<const Feed> feeds) {
  std::vector<model::Chunk> chunks;
  for (const Feed& feed : feeds) {
    Sequence& s = *feed.sequence;
    const auto count = static_cast<uint32_t>(feed.tokens.size());
    while (s.pages.size() * shm::kPageTokens < s.length + count) {
      const auto page = kv_->allocate();
      if (!page) throw std::runtime_error("the KV pages are used up: " + std::to_string(s.length + count) + " tokens");
      s.pages.push_back(*page);
    }
    chunks.push_back({feed.tokens, s.length, s.pages, feed.logits});
    s.length += count;
  }
  return forward_->step(chunks);
}

std::vector<float> ModelRunner::logits(std::span<const uint32_t> tokens, uint32_t chunk) {
  Sequence sequence;
  std::vector<float> all;
  for (size_t at = 0; at < tokens.size(); at += chunk) {
    const auto piece = tokens.subspan(at, std::min<size_t>(chunk, tokens.size() - at));
    const std::span<const float> rows = step({&sequence, piece, static_cast<uint32_t>(piece.size())});
    all.insert(all.end(), rows.begin(), rows.end());
  }
  release(sequence);
  return all;
}

std::vector<uint32_t> ModelRunner::greedy(std::span<const uint32_t> prompt, uint32_t count) {
  Sequence sequence;
  std::vector<uint32_t> out;
  std::vector<uint32_t> next(prompt.begin(), prompt.end());
  while (out.size() < count) {
    const std::span<const float> row = step({&sequence, next, 1});
    out.push_back(kernels_.argmax(row.data(), vocabulary()));
    next = {out.back()};
  }
  release(sequence);
  return out;
}

void ModelRunner::release(Sequence& sequence) {
  for (const shm::PageId page : sequence.pages) kv_->release(page);
  sequence = {};
}

}  // namespace ellm::tools
