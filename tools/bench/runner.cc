#include "tools/bench/runner.h"

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <map>

#include "client/places.h"
#include "daemon/runtime/memory.h"
#include "tools/bench/cold_start.h"

namespace ellm::bench {
namespace {

Fill fill_of(const Options& o) { return o.fill == "prefill" ? Fill::prefill : Fill::copies; }

std::unique_ptr<Peer> make_peer(const Options& o) {
  if (o.peer.empty()) return nullptr;
  if (o.peer.starts_with("http://") || o.peer.starts_with("https://")) {
    const char* key = std::getenv("OPENAI_API_KEY");
    return make_endpoint_peer(o.peer, o.peer_model, key != nullptr ? key : "");
  }
  return make_llama_cpp_peer(o.peer, o.peer_kv);
}

/// Why a piece of work cannot be measured here; empty: it can.
std::string obstacle(const Work& w, const model::ModelConfig& config, shm::KvTypes kv) {
  if (w.longest() > config.context)
    return "skipped: the model's context is " + std::to_string(config.context) + " tokens";
  const size_t needed = Subject::pages(w) * model::page_geometry(config, kv).page_bytes(),
               free = runtime::available_memory_bytes();
  if (needed > free / 10 * 9)
    return "skipped: keys and values need " + std::to_string(needed >> 20) + " MB, " + std::to_string(free >> 20) +
           " MB are free";
  return {};
}

/// Whether both are measured by turns: they are to be compared, or so short that starting a peer for each would count.
bool by_turns(const Work& a, const Work& b) {
  Work private_b = b;
  private_b.shared = false;
  if (a == private_b) return true;
  const auto single = [](const Work& w) { return w.batch == 1 && w.kind != Kind::end_to_end && w.prompt <= 1024; };
  return single(a) && single(b) && a.depth == b.depth;
}

}  // namespace

Runner::Runner(const Options& options, const kernels::KernelSet& kernels, runtime::WorkerPool& pool, Report& report)
    : options_(options), kernels_(kernels), pool_(pool), report_(report), peer_(make_peer(options)) {
  if (!peer_) return;
  report_.peer = peer_->name();
  report_.peer_conditions = peer_->conditions();
}

void Runner::measure_limits() {
  const Limits now = bench::measure_limits(kernels_.level, pool_);
  if (report_.limits.bandwidths.empty()) report_.limits = now;
  else report_.limits.take_better(now);
}

std::shared_ptr<const model::Model> Runner::load(const Target& target, ModelInfo& info) {
  model::LoadOptions how{.threads = pool_.size(), .key_means = true, .state_directory = client::state_directory()};
  how.place.keep = true;  // a memfd, as a daemon of systemd's has
  auto model = model::Model::load(target.path, how);
  if (options_.cold_start ||
      options_.reach) {  // the first load has left digest and mean of K, and the file in the page cache
    for (uint32_t r = 0; r < options_.repetitions; ++r) {
      info.copy.seconds.push_back(time_copy(target.path, pool_));
      model.reset();
      const auto begin = std::chrono::steady_clock::now();
      model = model::Model::load(target.path, how);
      info.load.seconds.push_back(std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count());
    }
  }
  info.weight_types = model->weight_types();
  info.parameters = model->parameters();
  info.file_bytes = model->file_bytes();
  info.memory_bytes = model->weight_bytes();
  return model;
}

void Runner::measure(const Target& target, std::span<const Work> works,
                     const std::function<void(size_t, size_t)>& on_rows) {
  ModelInfo info{.label = target.label, .path = target.path};
  const auto model = load(target, info);
  report_.models.push_back(std::move(info));
  measure_limits();
  const CostModel costs(*format::Gguf::open(target.path), model->config());
  for (const std::string& name : options_.kv_types)
    measure_kv(target, model, costs, shm::find_kv_types(name).value(), works, on_rows);
}

void Runner::measure_kv(const Target& target, const std::shared_ptr<const model::Model>& model, const CostModel& costs,
                        shm::KvTypes kv, std::span<const Work> works,
                        const std::function<void(size_t, size_t)>& on_rows) {
  const size_t begin = report_.rows.size();
  std::vector<Work> possible;
  for (const Work& w : works) {
    report_.rows.push_back({.model = target.label,
                            .work = w,
                            .kv = kv,
                            .cost = costs.of(w, kv),
                            .skipped = obstacle(w, model->config(), kv)});
    if (report_.rows.back().skipped.empty()) possible.push_back(w);
  }
  usage_.resize(report_.rows.size());
  std::unique_ptr<Subject> subject;
  if (!possible.empty()) subject = std::make_unique<Subject>(model, kernels_, pool_, kv, possible, fill_of(options_));
  const shm::KvTypes main = shm::find_kv_types(options_.kv_types.front()).value();
  for (size_t first = begin, end; first < report_.rows.size(); first = end) {
    for (end = first + 1; end < report_.rows.size() && by_turns(works[first - begin], works[end - begin]);) ++end;
    for (uint32_t r = 0; r < options_.repetitions; ++r) {
      run_ours(*subject, first, end);
      if (peer_ && kv == main) run_peer(target, first, end, r == 0);
    }
    for (size_t i = first; i < end && peer_ && kv != main; ++i)  // its figures do not depend on our KV type
      if (const Row* same = report_.find(target.label, report_.rows[i].work, main)) report_.rows[i].peers = same->peers;
    find_disturbance(first, end);
    on_rows(first, end);
  }
  warn_of_disturbance(begin);
}

void Runner::run_ours(Subject& subject, size_t first, size_t end) {
  for (size_t i = first; i < end; ++i) {
    Row& row = report_.rows[i];
    if (!row.skipped.empty()) continue;
    disturbance_.since_last();
    const Measured measured = subject.run(row.work);
    row.ours.seconds.push_back(measured.seconds);
    row.kv_bytes_read = measured.kv_bytes_read, row.kv_bytes_held = measured.kv_bytes_held;
    usage_[i] += disturbance_.since_last();
  }
}

/// All variants the first time, then each work's best.
void Runner::run_peer(const Target& target, size_t first, size_t end, bool first_time) {
  std::map<std::string, std::vector<size_t>> rows;  // by variant
  for (size_t i = first; i < end; ++i) {
    const Row& row = report_.rows[i];
    if (!row.skipped.empty()) continue;
    if (first_time) {
      for (const std::string& v : peer_->variants(row.work)) rows[v].push_back(i);
    } else if (const PeerResult* best = row.best_peer()) {
      rows[best->variant].push_back(i);
    }
  }
  const PeerTask task{target.path, target.label, pool_.size(), fill_of(options_)};
  for (const auto& [variant, indexes] : rows) {
    std::vector<Work> works;
    for (const size_t i : indexes) works.push_back(report_.rows[i].work);
    const auto seconds = peer_->run(task, works, variant);
    for (size_t n = 0; n < indexes.size(); ++n) {
      if (!seconds[n]) continue;
      auto& peers = report_.rows[indexes[n]].peers;
      auto at = std::ranges::find(peers, variant, &PeerResult::variant);
      if (at == peers.end()) at = peers.insert(peers.end(), {variant, {}});
      at->series.seconds.push_back(*seconds[n]);
    }
  }
}

void Runner::find_disturbance(size_t first, size_t end) {
  for (size_t i = first; i < end; ++i) report_.rows[i].others = usage_[i].share() > kDisturbed ? usage_[i].share() : 0;
}

void Runner::warn_of_disturbance(size_t first_row) {
  Disturbance::Usage all;
  for (size_t i = first_row; i < report_.rows.size(); ++i) all += usage_[i];
  if (all.share() <= kDisturbed) return;
  char percent[16];
  std::snprintf(percent, sizeof percent, "%.0f %%", 100 * all.share());
  report_.warnings.push_back("other processes used " + std::string(percent) + " of the machine while " +
                             report_.rows[first_row].model + " with KV " + shm::name_of(report_.rows[first_row].kv) +
                             " was measured: these figures are too low");
}

}  // namespace ellm::bench
