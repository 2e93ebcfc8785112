// See metrics.h.
#include "daemon/metrics.h"

#include <prometheus/counter.h>
#include <prometheus/histogram.h>
#include <prometheus/registry.h>
#include <prometheus/text_serializer.h>

#include <array>
#include <chrono>
#include <utility>
#include <vector>

#include "daemon/services.h"

namespace ellm::daemon {
namespace {

using prometheus::ClientMetric;
using prometheus::Histogram;
using prometheus::MetricFamily;
using prometheus::MetricType;

using Labels = std::vector<ClientMetric::Label>;

const Histogram::BucketBoundaries kSeconds = {0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 120, 300};
const Histogram::BucketBoundaries kTokenSeconds = {0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.15, 0.2, 0.3, 0.5, 1, 2};

/// By serve::Reason, in the protocol's words.
constexpr std::array<const char*, serve::kReasons> kReasonNames = {
    "new", "last_token", "logits_needed", "evicted", "namespace", "fingerprint", "retokenised", "unsealed"};

constexpr std::array<const char*, serve::kPriorities> kPriorityNames = {"interactive", "batch"};

/// Metrics that are asked for at the scrape: one family after another, each of one or more values.
class Snapshot {
 public:
  void counter(const char* name, const char* help, double value) {
    begin(name, help, MetricType::Counter);
    add({}, value);
  }
  void gauge(const char* name, const char* help, double value) {
    begin(name, help, MetricType::Gauge);
    add({}, value);
  }
  void begin(const char* name, const char* help, MetricType type) {
    families_.push_back({});
    families_.back().name = name;
    families_.back().help = help;
    families_.back().type = type;
  }
  /// One more value of the family that was begun last.
  void add(Labels labels, double value) {
    ClientMetric metric;
    metric.label = std::move(labels);
    (families_.back().type == MetricType::Counter ? metric.counter.value : metric.gauge.value) = value;
    families_.back().metric.push_back(std::move(metric));
  }
  std::vector<MetricFamily> take() { return std::move(families_); }

 private:
  std::vector<MetricFamily> families_;
};

void add_daemon(Snapshot& out, const Services& services) {
  out.begin("ellm_info", "What runs here; always 1.", MetricType::Gauge);
  out.add({{"version", ELLM_VERSION}, {"kernels", services.kernels}, {"cpu", services.cpu}}, 1);
  const auto up = std::chrono::steady_clock::now() - services.start;
  out.gauge("ellm_uptime_seconds", "Since the daemon started.", std::chrono::duration<double>(up).count());
  out.gauge("ellm_threads", "Compute threads.", services.threads);
  out.gauge("ellm_connections", "Clients that are connected.", services.connections);
}

void add_engine(Snapshot& out, const serve::EngineCounters& counters) {
  const auto number = [](uint64_t n) { return static_cast<double>(n); };
  out.begin("ellm_requests_running", "Requests that are being computed.", MetricType::Gauge);
  for (size_t p = 0; p < serve::kPriorities; ++p) out.add({{"priority", kPriorityNames[p]}}, counters.running_by[p]);
  out.begin("ellm_requests_queued", "Requests that wait for their turn.", MetricType::Gauge);
  for (size_t p = 0; p < serve::kPriorities; ++p) out.add({{"priority", kPriorityNames[p]}}, counters.queued_by[p]);
  out.counter("ellm_requests_failed_total", "Requests that ended by a fault of ours.", number(counters.failed));
  out.counter("ellm_requests_refused_total", "Requests for which the queue was full.", number(counters.busy_refusals));
  out.counter("ellm_preemptions_total", "Times that a running request gave way to another.",
              number(counters.preemptions));
  out.counter("ellm_steps_total", "Passes through a model.", number(counters.steps));
  out.counter("ellm_step_seconds_total", "Time that they took.", counters.steps_ms / 1e3);
  out.counter("ellm_kv_read_bytes_total",
              "Keys and values that attention read; what sequences of a step share counts once.",
              number(counters.kv_bytes_read));
  out.begin("ellm_rows_total", "Tokens that went through a model: prefill (prompts), decode (answers).",
            MetricType::Counter);
  out.add({{"phase", "prefill"}}, number(counters.prefill_rows));
  out.add({{"phase", "decode"}}, number(counters.decode_rows));
  out.gauge("ellm_step_seconds", "Time of a step, mean of about the last 16.", counters.mean_step_ms / 1e3);
  out.gauge("ellm_step_sequences", "Requests in the last step.", counters.last_step_sequences);
  out.counter("ellm_prompt_tokens_total", "Prompt tokens of requests that were taken up.",
              number(counters.prompt_tokens));
  out.counter("ellm_cached_tokens_total", "Of these, found in the cache.", number(counters.cached_tokens));
  out.counter("ellm_completion_tokens_total", "Tokens generated.", number(counters.completion_tokens));
  out.gauge("ellm_step_age_seconds", "How long the present step has been running; 0 between steps.",
            counters.step_age_ms / 1e3);
}

void add_disk(Snapshot& out, const serve::DiskCounters& disk) {
  const auto number = [](uint64_t n) { return static_cast<double>(n); };
  out.gauge("ellm_disk_bytes", "Cached prefixes on disk.", number(disk.bytes));
  out.gauge("ellm_disk_budget_bytes", "What they may take there.", number(disk.budget_bytes));
  out.gauge("ellm_disk_index_bytes", "Memory of the index of what is on disk.", number(disk.index_bytes));
  out.gauge("ellm_disk_writing", "0 where the disk is full or refuses.", disk.writing ? 1 : 0);
  out.counter("ellm_disk_pages_written_total", "Pages of prefixes written to disk.", number(disk.pages_written));
  out.counter("ellm_disk_pages_read_total", "Pages of prefixes read from disk.", number(disk.pages_read));
  out.counter("ellm_disk_pages_damaged_total", "Pages dropped because their file was damaged.",
              number(disk.pages_damaged));
  out.counter("ellm_disk_files_skipped_total", "Files of prefixes that are damaged or not of a layout or model in use.",
              number(disk.files_skipped));
  out.counter("ellm_disk_memory_failures_total", "Times that memory was short for prefixes on disk.",
              number(disk.memory_failures));
}

void add_models(Snapshot& out, const Services& services) {
  const auto models = services.registry.loaded();
  out.begin("ellm_model_weights_bytes", "Memory that a loaded model's weights take.", MetricType::Gauge);
  for (const auto& m : models) out.add({{"model", m.name}}, static_cast<double>(m.resident_bytes));
  out.begin("ellm_model_locked", "1 where weights and KV are locked in memory.", MetricType::Gauge);
  for (const auto& m : models) out.add({{"model", m.name}}, m.locked ? 1 : 0);
  out.begin("ellm_kv_tokens", "Room for keys and values: used by requests, cached for later ones, free.",
            MetricType::Gauge);
  for (const auto& m : models) {
    const uint32_t used = m.kv_pages - std::min(m.kv_pages, m.kv_pages_free + m.kv_pages_cached);
    const auto tokens = [](uint32_t pages) { return static_cast<double>(pages) * shm::kPageTokens; };
    out.add({{"model", m.name}, {"state", "used"}}, tokens(used));
    out.add({{"model", m.name}, {"state", "cached"}}, tokens(m.kv_pages_cached));
    out.add({{"model", m.name}, {"state", "free"}}, tokens(m.kv_pages_free));
  }
}

}  // namespace

struct Metrics::Impl {
  mutable prometheus::Registry registry;
  prometheus::Family<prometheus::Counter>& requests =
      prometheus::BuildCounter().Name("ellm_requests_total").Help("Requests that ended, by how.").Register(registry);
  prometheus::Family<prometheus::Counter>& errors =
      prometheus::BuildCounter().Name("ellm_errors_total").Help("Errors sent to clients, by code.").Register(registry);
  prometheus::Family<prometheus::Counter>& recomputed =
      prometheus::BuildCounter()
          .Name("ellm_recomputed_tokens_total")
          .Help("Prompt tokens that were computed, by why they were not found in the cache.")
          .Register(registry);
  prometheus::Family<Histogram>& queue = prometheus::BuildHistogram()
                                             .Name("ellm_request_queue_seconds")
                                             .Help("From the engine's queue to the first step.")
                                             .Register(registry);
  prometheus::Family<Histogram>& first_token = prometheus::BuildHistogram()
                                                   .Name("ellm_request_ttft_seconds")
                                                   .Help("From the engine's queue to the first token.")
                                                   .Register(registry);
  prometheus::Family<Histogram>& per_token = prometheus::BuildHistogram()
                                                 .Name("ellm_request_time_per_token_seconds")
                                                 .Help("Mean time between the tokens of an answer.")
                                                 .Register(registry);
};

Metrics::Metrics() : impl_(std::make_unique<Impl>()) {}
Metrics::~Metrics() = default;

void Metrics::request_ended(const std::string& model, const std::string& kind, client::FinishReason reason,
                            const serve::RequestStats& stats) {
  impl_->requests.Add({{"model", model}, {"kind", kind}, {"finish_reason", client::name_of(reason)}}).Increment();
  impl_->queue.Add({{"model", model}}, kSeconds).Observe(stats.queue_ms / 1e3);
  if (stats.ttft_ms > 0) impl_->first_token.Add({{"model", model}}, kSeconds).Observe(stats.ttft_ms / 1e3);
  if (stats.completion_tokens > 1 && stats.decode_ms > 0) {
    const double per_token_ms = stats.decode_ms / (stats.completion_tokens - 1);
    impl_->per_token.Add({{"model", model}}, kTokenSeconds).Observe(per_token_ms / 1e3);
  }
  for (size_t i = 0; i < serve::kReasons; ++i) {
    if (stats.recomputed[i] == 0) continue;
    impl_->recomputed.Add({{"model", model}, {"reason", kReasonNames[i]}}).Increment(stats.recomputed[i]);
  }
}

void Metrics::error(client::ErrorCode code) { impl_->errors.Add({{"code", client::name_of(code)}}).Increment(); }

std::string Metrics::text(const Services& services) const {
  Snapshot snapshot;
  add_daemon(snapshot, services);
  add_engine(snapshot, services.engine.counters());
  add_models(snapshot, services);
  if (const auto disk = services.registry.disk()) add_disk(snapshot, disk->counters());
  std::vector<MetricFamily> families = snapshot.take();
  for (MetricFamily& family : impl_->registry.Collect()) families.push_back(std::move(family));
  return prometheus::TextSerializer().Serialize(families);
}

}  // namespace ellm::daemon
