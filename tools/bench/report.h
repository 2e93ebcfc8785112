// What was measured, and its three forms: a table, JSON (the schema is in report_json.cc) and HTML.
#pragma once
#include <optional>
#include <string>
#include <vector>

#include "tools/bench/cost.h"
#include "tools/bench/series.h"

namespace ellm::bench {

struct PeerResult {
  std::string variant;  // "q8_0", or empty
  Series series;
};

/// One piece of work on one model and KV type.
struct Row {
  std::string model;
  Work work;
  shm::KvTypes kv = shm::KvType::int8;
  Cost cost = {};
  Series ours = {};
  uint64_t kv_bytes_read = 0, kv_bytes_held = 0;  // by attention in all steps; by all sequences at the end
  std::vector<PeerResult> peers = {};
  double others = 0;         // share of the machine that others used meanwhile
  std::string skipped = {};  // why there are no figures

  const PeerResult* best_peer() const;  // null: none has one
  double tokens_per_second(const Series& series) const;
  std::optional<double> ratio() const;  // ours to the best peer's
};

struct ModelInfo {
  std::string label = {}, path = {}, weight_types = {};
  uint64_t parameters = 0, file_bytes = 0, memory_bytes = 0;
  Series load = {}, copy = {};  // cold start: to be ready, and to copy the file out of the page cache into fresh memory
};

struct Report {
  std::string cpu, kernels, fill;
  uint32_t threads = 0, repetitions = 0;
  std::string peer, peer_conditions;
  std::optional<double> price, peer_price;  // of an hour
  Limits limits;
  std::vector<ModelInfo> models;
  std::vector<Row> rows;
  std::vector<std::string> warnings;

  const Row* find(const std::string& model, const Work& work, shm::KvTypes kv) const;
};

/// Price of a million tokens of the work: those generated (a prefill: those of the prompt), and all that went in and
/// out.
struct TokenPrice {
  double output, all;
};
TokenPrice token_price(const Work& work, double seconds, double price_per_hour);

std::string limits_text(const Report& report);
std::string table_head(const Report& report);
std::string table_row(const Report& report, const Row& row);
std::string table_cold_start(const ModelInfo& model);
std::string to_json(const Report& report);
std::string to_html(const Report& report);

}  // namespace ellm::bench
