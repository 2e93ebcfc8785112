// What a piece of work must read and compute at least, counted from a model file's own tensors: fractions of the
// machine's limits are of this, whatever an engine does beside it. Pure.
#pragma once
#include <map>

#include "daemon/format/gguf.h"
#include "daemon/model/config.h"
#include "shm/geometry.h"
#include "tools/bench/limits.h"
#include "tools/bench/work.h"

namespace ellm::bench {

struct Cost {
  double weight_bytes = 0;  // of the file's tensors, as often as they must be read
  double kv_bytes = 0;
  std::map<kernels::WeightType, double> operations;  // a multiplication and an addition a weight and token
  double attention_operations = 0;

  double bytes() const { return weight_bytes + kv_bytes; }
  double all_operations() const;
  Cost& operator+=(const Cost& other);
};

/// Seconds that the machine needs at least.
struct Bound {
  double memory, compute;
  double seconds() const { return memory > compute ? memory : compute; }
};

class CostModel {
 public:
  CostModel(const format::Gguf& file, const model::ModelConfig& config);

  Cost of(const Work& work, shm::KvTypes kv) const;
  static Bound bound(const Cost& cost, const Limits& limits, shm::KvTypes kv);

 private:
  struct Matrix {
    kernels::WeightType type;
    double bytes, weights;
    enum class Use : uint8_t { all, output, table, experts } use;
  };
  /// A step with these rows, of which `logits` reach the output matrix.
  Cost weights(double rows, double logits) const;
  Cost prompts(const Work& work, shm::KvTypes kv) const;
  Cost attention(double first_position, double rows, double read_already, shm::KvTypes kv) const;

  model::ModelConfig config_;
  std::vector<Matrix> matrices_;
};

}  // namespace ellm::bench
