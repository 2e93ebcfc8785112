// See top_view.h.
#include "client/cli/top_view.h"

#include <algorithm>

#include "client/cli/json.h"
#include "client/cli/output.h"
#include "client/cli/tables.h"

namespace ellm::cli {
namespace {

using client::Totals;

double difference(uint64_t before, uint64_t now) { return now > before ? static_cast<double>(now - before) : 0; }

/// "12.3K", "4.1M": what fits a column.
std::string human_count(uint64_t count) {
  const auto number = static_cast<double>(count);
  if (count < 10'000) return std::to_string(count);
  if (count < 10'000'000) return format("%.1fK", number / 1e3);
  return format("%.1fM", number / 1e6);
}

}  // namespace

Rates rates_between(const Totals& before, const Totals& now) {
  Rates rates;
  const double seconds = now.updated_s - before.updated_s;
  if (seconds <= 0 || now.start_s != before.start_s) return rates;  // another daemon
  const double prompt = difference(before.prompt_tokens, now.prompt_tokens);
  const double decoded = difference(before.completion_tokens, now.completion_tokens);
  const double steps = difference(before.steps, now.steps);
  rates.prefill = difference(before.prefill_rows, now.prefill_rows) / seconds;
  rates.decode = decoded / seconds;
  rates.requests = difference(before.served, now.served) / seconds;
  if (steps > 0) rates.batch = difference(before.decode_rows, now.decode_rows) / steps;
  if (prompt > 0) rates.cached = std::min(1.0, difference(before.cached_tokens, now.cached_tokens) / prompt);
  return rates;
}

Totals totals_of(const client::StatusReply& status, double now_s) {
  Totals t;
  t.pid = status.pid;
  t.updated_s = now_s;
  t.threads = status.threads;
  t.connections = status.connections;
  t.models = status.models.size();
  t.running = status.running;
  t.queued = status.queued;
  t.served = status.served;
  t.prompt_tokens = status.prompt_tokens;
  t.cached_tokens = status.cached_tokens;
  t.completion_tokens = status.completion_tokens;
  for (const client::ModelInfo& model : status.models) {
    t.kv_tokens += uint64_t{model.kv_pages} * 32;
    t.kv_free_tokens += uint64_t{model.kv_pages_free} * 32;
    t.kv_cached_tokens += uint64_t{model.kv_pages_cached} * 32;
    t.weight_bytes += model.resident_bytes;
  }
  return t;
}

std::string top_text(const client::StatusReply& status, const Totals& t, const Rates& rates) {
  const uint64_t idle = t.kv_free_tokens + t.kv_cached_tokens;
  const uint64_t used = t.kv_tokens > idle ? t.kv_tokens - idle : 0;
  std::string text =
      format("ellmd %s, up %s, %u threads, %s kernels, %ju connected, %ju served\n", status.version.c_str(),
             human_seconds(status.uptime_s).c_str(), status.threads, status.kernels.c_str(),
             static_cast<uintmax_t>(t.connections), static_cast<uintmax_t>(t.served));
  text += format("%ju running, %ju queued; prefill %.0f, decode %.1f tokens/s, batch %.1f, step %.0f ms\n",
                 static_cast<uintmax_t>(t.running), static_cast<uintmax_t>(t.queued), rates.prefill, rates.decode,
                 rates.batch, t.step_ms);
  text += format("KV of %s tokens: %s used, %s cached, %s free; %.0f %% of prompts cached; weights %s\n",
                 human_count(t.kv_tokens).c_str(), human_count(used).c_str(), human_count(t.kv_cached_tokens).c_str(),
                 human_count(t.kv_free_tokens).c_str(), 100 * rates.cached,
                 human_bytes(static_cast<double>(t.weight_bytes)).c_str());
  for (const std::string& warning : status.warnings) text += "warning: " + warning + "\n";
  return text + "\n" + (status.requests.empty() ? "no request is running\n" : requests_table(status.requests));
}

boost::json::object top_json(const client::StatusReply& status, const Totals& t, const Rates& rates) {
  return {{"running", t.running},
          {"queued", t.queued},
          {"connections", t.connections},
          {"served", t.served},
          {"prefill_tokens_per_second", rates.prefill},
          {"decode_tokens_per_second", rates.decode},
          {"requests_per_second", rates.requests},
          {"batch", rates.batch},
          {"step_ms", t.step_ms},
          {"cached_share", rates.cached},
          {"kv_tokens", t.kv_tokens},
          {"kv_free_tokens", t.kv_free_tokens},
          {"kv_cached_tokens", t.kv_cached_tokens},
          {"weight_bytes", t.weight_bytes},
          {"models", to_json(status.models)},
          {"requests", to_json(status.requests)}};
}

}  // namespace ellm::cli
