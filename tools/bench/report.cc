#include "tools/bench/report.h"

#include "tools/bench/format.h"

namespace ellm::bench {

const PeerResult* Row::best_peer() const {
  const PeerResult* best = nullptr;
  for (const PeerResult& p : peers)
    if (!p.series.empty() && (best == nullptr || p.series.median() < best->series.median())) best = &p;
  return best;
}

double Row::tokens_per_second(const Series& series) const {
  return series.empty() ? 0 : static_cast<double>(work.tokens()) / series.median();
}

std::optional<double> Row::ratio() const {
  const PeerResult* best = best_peer();
  if (best == nullptr || ours.empty()) return std::nullopt;
  return best->series.median() / ours.median();
}

const Row* Report::find(const std::string& model, const Work& work, shm::KvTypes kv) const {
  for (const Row& r : rows)
    if (r.model == model && r.work == work && r.kv == kv) return &r;
  return nullptr;
}

TokenPrice token_price(const Work& work, double seconds, double price_per_hour) {
  const double price = price_per_hour / 3600 * seconds * 1e6;
  const double all = static_cast<double>(work.batch) * (work.prompt + (work.kind == Kind::prefill ? 0 : work.generate));
  return {price / static_cast<double>(work.tokens()), price / all};
}

std::string limits_text(const Report& r) {
  std::string text =
      format("%s, kernels %s, %u threads\nread GB/s (threads x streams):", r.cpu.c_str(), r.kernels.c_str(), r.threads);
  for (const Bandwidth& b : r.limits.bandwidths)
    text += format("  %ux%d %.1f", b.threads, b.streams, b.bytes_per_second * 1e-9);
  text += format("\nGop/s: bytes %.0f", r.limits.integer[0] * 1e-9);
  if (r.kernels == "avx2")
    text += format(", codes of 6 bits %.0f, of 5 %.0f, of 4 %.0f", r.limits.integer[1] * 1e-9,
                   r.limits.integer[2] * 1e-9, r.limits.integer[3] * 1e-9);
  return text + format(", f32 %.0f\n", r.limits.floating * 1e-9);
}

std::string table_head(const Report& r) {
  std::string text = format("%-22s %-26s %-6s %10s %7s %6s %7s %8s", "model", "work", "KV", "tokens/s", "spread",
                            "of bw", "of peak", "KV MB");
  if (!r.peer.empty()) text += format(" %10s %7s %-6s", r.peer.substr(0, 10).c_str(), "ratio", "its KV");
  if (r.price) text += format(" %10s", "price/M");
  if (r.peer_price) text += format(" %10s", "its");
  return text + "\n";
}

std::string table_row(const Report& r, const Row& row) {
  std::string text =
      format("%-22s %-26s %-6s", row.model.c_str(), row.work.name().c_str(), shm::name_of(row.kv).c_str());
  if (!row.skipped.empty()) return text + " " + row.skipped + "\n";
  const Bound bound = CostModel::bound(row.cost, r.limits, row.kv);
  const double seconds = row.ours.median();
  text += format(" %10.1f %6.1f%% %6.2f %7.2f %8.1f", row.tokens_per_second(row.ours), 100 * row.ours.spread(),
                 bound.memory / seconds, bound.compute / seconds,
                 static_cast<double>(row.kv_bytes_read) / row.work.steps() * 1e-6);
  const PeerResult* best = row.best_peer();
  if (best != nullptr)
    text += format(" %10.1f %6.2fx %-6s", row.tokens_per_second(best->series), row.ratio().value_or(0),
                   best->variant.c_str());
  else if (!r.peer.empty()) text += format(" %10s %7s %-6s", "-", "", "");
  if (r.price) text += format(" %10.3f", token_price(row.work, seconds, *r.price).output);
  if (r.peer_price && best != nullptr)
    text += format(" %10.3f", token_price(row.work, best->series.median(), *r.peer_price).output);
  if (row.others > 0) text += format("   (others used %.0f %% of the machine)", 100 * row.others);
  return text + "\n";
}

std::string table_cold_start(const ModelInfo& m) {
  if (m.load.empty()) return {};
  return format("%-22s %-26s %.2f s, %.2f x copying the file (%.2f s)\n", m.label.c_str(), "cold start to ready",
                m.load.median(), m.load.median() / m.copy.median(), m.copy.median());
}

}  // namespace ellm::bench
