// The command line of ellm-bench.
#pragma once
#include <CLI/App.hpp>
#include <optional>
#include <string>
#include <vector>

#include "tools/bench/work.h"

namespace ellm::bench {

struct Options {
  std::vector<std::string> models, shapes, sets;
  std::vector<uint32_t> prompts, generates, depths = {0}, batches = {1};
  std::vector<std::string> end_to_end;  // "2048:512"
  std::vector<std::string> kv_types = {"int8"}, peer_kv = {"f16", "q8_0"};
  uint32_t threads = 0, repetitions = 3;
  std::string kernels, shape_directory, peer, peer_model, html;
  std::string fill = "copies";
  std::vector<double> prices;  // of an hour: ours, the peer's
  bool shared = false, reach = false, cold_start = false, limits_only = false, json = false;
};

void declare_options(CLI::App& app, Options& options);

/// The work that they ask for, each piece once. Throws std::runtime_error.
std::vector<Work> works_of(const Options& options);

}  // namespace ellm::bench
