// From a RoPE configuration to the angular frequency of each pair and the magnitude of the rotation (yarn).
#pragma once
#include <vector>

#include "daemon/model/config.h"

namespace ellm::model {

struct RopeTable {
  std::vector<double> frequency;  // radians per position, (rope.dimensions / 2)
  float magnitude = 1;            // cos and sin are multiplied by this
};
RopeTable make_rope_table(const RopeConfig& rope);

}  // namespace ellm::model
