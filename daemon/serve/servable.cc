// See servable.h.
#include "daemon/serve/servable.h"

#include <algorithm>
#include <utility>

#include "daemon/model/forward.h"

namespace ellm::serve {
namespace {

class ForwardRunner : public StepRunner {
 public:
  ForwardRunner(std::shared_ptr<const model::Model> model, const kernels::KernelSet& kernels, runtime::WorkerPool& pool,
                shm::KvPages& kv, const EngineLimits& limits)
      : forward_(std::move(model), kernels, pool, kv, limits.step_tokens, limits.max_running + limits.score_rows) {}
  std::span<const float> step(std::span<const model::Chunk> chunks) override { return forward_.step(chunks); }
  uint64_t kv_bytes_read() const override { return forward_.kv_bytes_read(); }
  uint32_t max_rows() const override { return forward_.max_rows(); }
  uint32_t max_logits() const override { return forward_.max_logits(); }
  uint32_t vocabulary() const override { return forward_.vocabulary(); }

 private:
  model::ForwardPass forward_;
};

shm::StoreOptions store_options(const model::ModelConfig& config, const KvSetup& kv) {
  const auto pages = [](uint64_t tokens) {
    return static_cast<uint32_t>(std::min<uint64_t>(tokens / shm::kPageTokens, UINT32_MAX));
  };
  shm::StoreOptions options;
  options.geometry = model::page_geometry(config, kv.type);
  options.pages = pages(kv.tokens);
  options.least_pages = pages(kv.least_tokens);
  options.most_pages = pages(kv.most_tokens);
  options.lock = kv.lock;
  options.fingerprint = kv.fingerprint;
  options.name = kv.segment_name;
  options.fd = kv.segment_fd;
  return options;
}

/// One request of any length must always find room beside what is pinned.
uint32_t most_pinned(const shm::ShareOptions& shares, uint32_t pages, uint32_t context) {
  const uint32_t one = (context + shm::kPageTokens - 1) / shm::kPageTokens;
  return std::min({shares.most_pinned, pages - std::min(pages, one),
                   static_cast<uint32_t>(uint64_t{pages} * shares.pinned_percent / 100)});
}

}  // namespace

Servable make_servable(const std::string& name, std::shared_ptr<const model::Model> model, const KvSetup& kv,
                       const kernels::KernelSet& kernels, runtime::WorkerPool& pool, const EngineLimits& limits) {
  const shm::StoreOptions options = store_options(model->config(), kv);
  Servable servable;
  servable.model = model;
  servable.kv_type = shm::name_of(kv.type);
  servable.context = static_cast<uint32_t>(std::min<uint64_t>(kv.context, uint64_t{options.pages} * shm::kPageTokens));
  servable.on_damage = kv.on_damage;
  servable.shares = kv.shares;
  servable.is_end = [tokenizer = model->tokenizer()](uint32_t token) { return tokenizer->is_end(token); };
  servable.disk_tier = kv.disk;
  servable.fingerprint = kv.fingerprint;
  if (servable.context == 0) throw model::LoadError(name + ": no memory for KV pages");
  try {
    servable.kv = shm::KvPages::create(options);
    servable.shares.most_pinned = most_pinned(servable.shares, servable.kv->total_pages(), servable.context);
    servable.runner = std::make_unique<ForwardRunner>(std::move(model), kernels, pool, *servable.kv, limits);
  } catch (const std::exception& e) {
    throw model::LoadError(name + ": cannot make room for " + std::to_string(kv.tokens) + " tokens of KV (" +
                           std::to_string(options.geometry.page_bytes() * options.pages) + " bytes): " + e.what());
  }
  return servable;
}

}  // namespace ellm::serve
