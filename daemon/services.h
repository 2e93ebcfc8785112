// What the parts of the daemon share; built by main in this order and handed down by reference.
#pragma once
#include <chrono>
#include <cstdint>
#include <string>
#include <vector>

#include "daemon/accounts.h"
#include "daemon/config.h"
#include "daemon/loop.h"
#include "daemon/metrics.h"
#include "daemon/namespaces.h"
#include "daemon/outbox.h"
#include "daemon/prepare_pool.h"
#include "daemon/registry.h"
#include "daemon/serve/engine.h"
#include "daemon/stats_page.h"

namespace ellm::daemon {

struct Services {
  const Config& config;
  Loop& loop;
  Outbox& outbox;
  serve::Engine& engine;
  PreparePool& pool;
  Registry& registry;
  Accounts& accounts;
  const Namespaces& namespaces;
  Metrics& metrics;
  StatsPage& stats_page;

  // Constant facts, for `status`.
  std::string kernels, cpu;
  uint32_t threads = 0;
  std::chrono::steady_clock::time_point start = std::chrono::steady_clock::now();

  // I/O thread.
  uint32_t connections = 0;
  uint64_t in_flight = 0;                   // requests of all connections
  bool draining = false;                    // new work is refused
  std::function<void()> on_idle = nullptr;  // called when nothing is in flight any more

  void leave(uint64_t requests) {
    in_flight -= requests;
    if (requests != 0 && in_flight == 0 && on_idle) on_idle();
  }
};

}  // namespace ellm::daemon
