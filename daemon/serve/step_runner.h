// What the engine needs of a model: steps over token chunks. The real one is model::ForwardPass; tests bring their own.
// Called by the engine thread alone.
#pragma once
#include <cstdint>
#include <span>

#include "daemon/model/forward.h"

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

}  // namespace ellm::serve
