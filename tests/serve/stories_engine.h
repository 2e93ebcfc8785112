// An engine of the tests that serves a model as "stories" with a context of 512, from so many pages.
#pragma once
#include <memory>

#include "daemon/model/forward.h"
#include "daemon/serve/engine.h"

namespace ellm::serve {

inline constexpr uint32_t kStoriesContext = 512;

inline KvSetup stories_setup(uint32_t pages, shm::KvType kv_type) {
  KvSetup kv;
  kv.type = kv_type;
  kv.tokens = uint64_t{pages} * shm::kPageTokens;
  kv.context = kStoriesContext;
  return kv;
}

inline std::unique_ptr<Engine> stories_engine(const std::shared_ptr<const model::Model>& model,
                                              runtime::WorkerPool& pool, const EngineLimits& limits, uint32_t pages,
                                              shm::KvType kv_type) {
  auto engine = std::make_unique<Engine>(model::choose_kernels("auto"), pool, limits);
  engine->add_model("stories", model, stories_setup(pages, kv_type));
  return engine;
}

}  // namespace ellm::serve
