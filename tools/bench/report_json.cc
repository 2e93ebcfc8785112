// The report as one JSON document:
//   {"version", "machine": {"cpu", "kernels", "threads"}, "repetitions", "fill", "peer", "peer_conditions", "price",
//   "peer_price",
//    "limits": {"read": [{"threads", "streams", "bytes_per_second"}], "bytes_per_second",
//               "integer_operations_per_second": {"1", "2", "4", "8"}, "float_operations_per_second"},
//    "models": [{"model", "path", "weights", "parameters", "file_bytes", "memory_bytes", "cold_start": {…} or null}],
//    "results": [{"model", "work", "kind", "prompt", "generate", "depth", "batch", "kv", "skipped" or
//                 "seconds": [of each repetition], "tokens", "tokens_per_second", "low", "high", "spread",
//                 "weight_bytes", "kv_bytes", "operations", "attention_operations", "memory_seconds",
//                 "compute_seconds", "of_bandwidth", "of_peak", "of_limit", "bound", "others", "peers": [{"variant",
//                 "seconds", "tokens_per_second"}], "ratio", "price_per_million", "peer_price_per_million"}],
//    "warnings": [text]}
// "operations" count a multiplication and an addition for each weight and token; fractions are memory_seconds and
// compute_seconds over the median.
#include <boost/json.hpp>

#include "tools/bench/report.h"

namespace ellm::bench {
namespace {

using boost::json::array;
using boost::json::object;
using boost::json::value;

array numbers(const std::vector<double>& of) { return array(of.begin(), of.end()); }

object limits_json(const Limits& l) {
  array read;
  for (const Bandwidth& b : l.bandwidths)
    read.push_back(object{{"threads", b.threads}, {"streams", b.streams}, {"bytes_per_second", b.bytes_per_second}});
  return {{"read", read},
          {"bytes_per_second", l.bandwidth()},
          {"integer_operations_per_second",
           object{{"1", l.integer[0]}, {"2", l.integer[1]}, {"4", l.integer[2]}, {"8", l.integer[3]}}},
          {"float_operations_per_second", l.floating}};
}

object model_json(const ModelInfo& m) {
  object out{{"model", m.label},           {"path", m.path},
             {"weights", m.weight_types},  {"parameters", m.parameters},
             {"file_bytes", m.file_bytes}, {"memory_bytes", m.memory_bytes},
             {"cold_start", nullptr}};
  if (!m.load.empty())
    out["cold_start"] = object{{"seconds", numbers(m.load.seconds)},
                               {"copy_seconds", numbers(m.copy.seconds)},
                               {"of_copy", m.load.median() / m.copy.median()}};
  return out;
}

const char* kind_name(Kind kind) {
  return kind == Kind::prefill ? "prefill" : kind == Kind::decode ? "decode" : "end_to_end";
}

value price_json(const Work& work, const Series& series, const std::optional<double>& price) {
  if (!price || series.empty()) return nullptr;
  const TokenPrice p = token_price(work, series.median(), *price);
  return object{{"output", p.output}, {"all", p.all}};
}

object row_json(const Report& r, const Row& row) {
  const Work& w = row.work;
  object out{{"model", row.model},     {"work", w.name()}, {"kind", kind_name(w.kind)}, {"prompt", w.prompt},
             {"generate", w.generate}, {"depth", w.depth}, {"batch", w.batch},          {"kv", shm::name_of(row.kv)}};
  if (!row.skipped.empty()) {
    out["skipped"] = row.skipped;
    return out;
  }
  const Bound bound = CostModel::bound(row.cost, r.limits, row.kv);
  const double seconds = row.ours.median(), tokens = static_cast<double>(w.tokens());
  object operations;
  for (const auto& [type, n] : row.cost.operations) operations[kernels::block_shape(type).name] = n;
  for (const auto& [key, v] : std::initializer_list<std::pair<const char*, value>>{
           {"seconds", numbers(row.ours.seconds)},
           {"tokens", w.tokens()},
           {"tokens_per_second", tokens / seconds},
           {"low", tokens / row.ours.most()},
           {"high", tokens / row.ours.least()},
           {"spread", row.ours.spread()},
           {"weight_bytes", row.cost.weight_bytes},
           {"kv_bytes", row.cost.kv_bytes},
           {"kv_bytes_read", row.kv_bytes_read},
           {"kv_bytes_held", row.kv_bytes_held},
           {"operations", operations},
           {"attention_operations", row.cost.attention_operations},
           {"memory_seconds", bound.memory},
           {"compute_seconds", bound.compute},
           {"of_bandwidth", bound.memory / seconds},
           {"of_peak", bound.compute / seconds},
           {"of_limit", bound.seconds() / seconds},
           {"bound", bound.memory > bound.compute ? "memory" : "compute"},
           {"others", row.others}})
    out[key] = v;
  array peers;
  for (const PeerResult& p : row.peers)
    if (!p.series.empty())
      peers.push_back(object{{"variant", p.variant},
                             {"seconds", numbers(p.series.seconds)},
                             {"tokens_per_second", row.tokens_per_second(p.series)}});
  out["peers"] = peers;
  out["ratio"] = row.ratio() ? value(*row.ratio()) : value(nullptr);
  out["price_per_million"] = price_json(w, row.ours, r.price);
  const PeerResult* best = row.best_peer();
  out["peer_price_per_million"] = price_json(w, best != nullptr ? best->series : Series{}, r.peer_price);
  return out;
}

}  // namespace

std::string to_json(const Report& r) {
  object out{{"version", ELLM_VERSION},
             {"machine", object{{"cpu", r.cpu}, {"kernels", r.kernels}, {"threads", r.threads}}},
             {"repetitions", r.repetitions},
             {"fill", r.fill},
             {"peer", r.peer},
             {"peer_conditions", r.peer_conditions},
             {"price", r.price ? value(*r.price) : value(nullptr)},
             {"peer_price", r.peer_price ? value(*r.peer_price) : value(nullptr)},
             {"limits", limits_json(r.limits)}};
  array models, results, warnings;
  for (const ModelInfo& m : r.models) models.push_back(model_json(m));
  for (const Row& row : r.rows) results.push_back(row_json(r, row));
  for (const std::string& w : r.warnings) warnings.push_back(value(w));
  out["models"] = models, out["results"] = results, out["warnings"] = warnings;
  return boost::json::serialize(out) + "\n";
}

}  // namespace ellm::bench
