// A model file of a real shape with random weights: what no download serves can be measured, and a peer loads the same
// file.
#pragma once
#include <string>
#include <vector>

#include "tools/bench/gguf_writer.h"
#include "tools/bench/shape.h"

namespace ellm::bench {

/// All tensors of such a file in the order in which they are written.
std::vector<TensorPlan> plan_tensors(const ShapeRequest& request);

/// The path of the file in `directory`; written there if it is not yet (once per shape: it is the same everywhere).
/// Throws std::runtime_error when the file system lacks the room.
std::string synthesise(const ShapeRequest& request, const std::string& directory);

}  // namespace ellm::bench
