// How the workers of a step share a matrix product. Internal to daemon/model.
#pragma once
#include <algorithm>
#include <cstdint>

#include "daemon/runtime/worker_pool.h"

namespace ellm::model {

/// Items per worker of a matrix product: small enough to balance, large enough to stream.
inline constexpr uint32_t kMatmulItems = 6;

/// A worker's share of `panels` panels, item by item: body(first, last), first a multiple of `granule`.
template <typename Body>
void for_panels(runtime::Worker& worker, uint32_t panels, uint32_t granule, const Body& body) {
  uint32_t piece = (panels + worker.count() * kMatmulItems - 1) / (worker.count() * kMatmulItems);
  piece = (piece + granule - 1) / granule * granule;
  for (uint32_t i; (i = worker.next()) * uint64_t{piece} < panels;) body(i * piece, std::min(panels, (i + 1) * piece));
}

}  // namespace ellm::model
