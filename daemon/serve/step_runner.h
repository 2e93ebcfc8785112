// What the engine needs of a model: steps over token chunks. The real one is model::ForwardPass; tests bring their own.
// Called by the engine thread alone.
#pragma once
#include <functional>
#include <memory>
#include <span>
#include <string>

#include "daemon/model/forward.h"
#include "daemon/model/model.h"
#include "daemon/serve/disk_pages.h"
#include "shm/kv_pages.h"
#include "shm/page_shares.h"

namespace ellm::serve {

class StepRunner {
 public:
  virtual ~StepRunner() = default;
  /// As ForwardPass::step. An exception fails the requests of this step and no others.
  virtual std::span<const float> step(std::span<const model::Chunk> chunks) = 0;
  /// As ForwardPass::kv_bytes_read, of the last step.
  virtual uint64_t kv_bytes_read() const { return 0; }
  virtual uint32_t max_rows() const = 0;
  virtual uint32_t max_logits() const = 0;
  virtual uint32_t vocabulary() const = 0;
};

/// A model with everything that serving it takes. `runner` and `disk` use `kv`, so they are declared after it.
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

}  // namespace ellm::serve
