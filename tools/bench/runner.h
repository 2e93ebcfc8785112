// Measures everything that the options ask for, in order: limits, then for each model its cold start and each piece of
// work, ours and the peer's in turn. The calling thread is worker 0.
#pragma once
#include <functional>
#include <memory>
#include <string>

#include "tools/bench/disturbance.h"
#include "tools/bench/options.h"
#include "tools/bench/peer.h"
#include "tools/bench/report.h"
#include "tools/bench/subject.h"

namespace ellm::bench {

/// A model to measure.
struct Target {
  std::string label, path;
};

class Runner {
 public:
  Runner(const Options& options, const kernels::KernelSet& kernels, runtime::WorkerPool& pool, Report& report);

  void measure_limits();
  /// `on_rows` is called with the report's rows [first, end) when they are complete.
  void measure(const Target& target, std::span<const Work> works,
               const std::function<void(size_t first, size_t end)>& on_rows);

 private:
  std::shared_ptr<const model::Model> load(const Target& target, ModelInfo& info);
  void measure_kv(const Target& target, const std::shared_ptr<const model::Model>& model, const CostModel& costs,
                  shm::KvTypes kv, std::span<const Work> works, const std::function<void(size_t, size_t)>& on_rows);
  void run_ours(Subject& subject, size_t first, size_t end);
  void run_peer(const Target& target, size_t first, size_t end, bool first_time);
  void find_disturbance(size_t first, size_t end);
  void warn_of_disturbance(size_t first_row);

  const Options& options_;
  const kernels::KernelSet& kernels_;
  runtime::WorkerPool& pool_;
  Report& report_;
  std::unique_ptr<Peer> peer_;
  Disturbance disturbance_;
  std::vector<Disturbance::Usage> usage_;  // by row
};

}  // namespace ellm::bench
