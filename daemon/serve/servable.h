// A model with its pages and what computes its steps: what the engine needs to serve it. Made by the thread that loads
// the model; used by the engine's.
#pragma once
#include <cstdint>
#include <functional>
#include <memory>
#include <string>

#include "daemon/model/model.h"
#include "daemon/runtime/worker_pool.h"
#include "daemon/serve/disk_pages.h"
#include "daemon/serve/engine.h"
#include "daemon/serve/step_runner.h"
#include "shm/kv_pages.h"
#include "shm/page_shares.h"

namespace ellm::serve {

/// `runner` and `disk` use `kv`, so they are declared after it.
struct Servable {
  std::shared_ptr<const model::Model> model;  // null in tests
  std::string kv_type;                        // "f16"
  uint32_t context = 0;                       // tokens of one request, prompt and answer; no more than kv holds
  std::function<bool(uint32_t)> is_end;       // tokens that end a generation
  std::function<void(uint32_t)> on_damage;    // or empty: see KvSetup
  shm::ShareOptions shares = {};              // of the KV pages
  std::unique_ptr<shm::KvPages> kv;
  std::unique_ptr<StepRunner> runner;
  std::shared_ptr<DiskTier> disk_tier;  // or null
  std::string fingerprint;              // for it: what the pages' bytes depend on
  std::unique_ptr<DiskPages> disk;      // made of these by the engine
};

/// Its pages are laid out, or taken over from an earlier process. Throws model::LoadError: no room.
Servable make_servable(const std::string& name, std::shared_ptr<const model::Model> model, const KvSetup& kv,
                       const kernels::KernelSet& kernels, runtime::WorkerPool& pool, const EngineLimits& limits);

}  // namespace ellm::serve
