// A model of the shared data with what a step needs.
#pragma once
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "daemon/model/forward.h"
#include "daemon/runtime/worker_pool.h"
#include "shm/kv_pages.h"

namespace ellm::conformance {

class Runner {
 public:
  Runner(const std::string& path, shm::KvType kv_type);

  /// Logits at every token, (tokens, vocabulary).
  std::vector<float> logits(std::span<const uint32_t> tokens);
  uint32_t vocabulary() const { return forward_->vocabulary(); }
  const format::Tokenizer& tokenizer() const { return *model_->tokenizer(); }

 private:
  std::shared_ptr<const model::Model> model_;
  runtime::WorkerPool pool_;
  std::unique_ptr<shm::KvPages> kv_;
  std::unique_ptr<model::ForwardPass> forward_;
};

std::span<const float> row_of(const std::vector<float>& logits, size_t row, uint32_t vocabulary);
uint32_t best_of(std::span<const float> row);
/// Best minus second.
double margin_of(std::span<const float> row);
/// Mean of -log p(token i + 1 | tokens up to i).
double mean_nll(const std::vector<float>& logits, std::span<const uint32_t> tokens, uint32_t vocabulary);

}  // namespace ellm::conformance
