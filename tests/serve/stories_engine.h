// An engine of the tests that serves a model as "stories" with a context of 512, from so many pages.
#pragma once
#include <memory>

#include "daemon/model/forward.h"
#include "daemon/serve/engine.h"

namespace ellm::serve {

inline constexpr uint32_t kStoriesContext = 512;

inline std::unique_ptr<Engine> stories_engine(const std::shared_ptr<const model::Model>& model,
                                              runtime::WorkerPool& pool, const EngineLimits& limits, uint32_t pages,
                                              shm::KvType kv_type) {
  auto engine = std::make_unique<Engine>(model::choose_kernels("auto"), pool, limits);
  KvSetup kv;
  kv.type = kv_type;
  kv.tokens = uint64_t{pages} * shm::kPageTokens;
  kv.context = kStoriesContext;
  engine->add_model("stories", model, kv);
  return engine;
}

}  // namespace ellm::serve
