// See lifecycle.h.
#include "daemon/lifecycle.h"

#include <csignal>
#include <cstdlib>

#include "daemon/log.h"
#include "daemon/notify.h"

namespace ellm::daemon {
namespace {

constexpr uint32_t kDiskSeconds = 6;      // that writing prefixes to disk may take, and a moment (serve/engine.cc)
constexpr uint32_t kFlushMs = 3000;       // for cancelled requests to answer and clients to read
constexpr uint32_t kStatsMs = 100;        // between two states of the stats page
constexpr uint32_t kIdleTicks = 10;       // of these, between two where nothing is asked
constexpr double kStuckStepMs = 300'000;  // a step that takes this long never ends

}  // namespace

Lifecycle::Lifecycle(Services& services, Server& server, Listener& listener)
    : services_(services), server_(server), listener_(listener) {}

std::string Lifecycle::status() const {
  const auto counters = services_.engine.counters();
  const size_t models = services_.engine.models().size();
  return std::to_string(models) + (models == 1 ? " model, " : " models, ") + std::to_string(counters.running) +
         " running, " + std::to_string(counters.queued) + " queued, " + std::to_string(counters.served) + " served";
}

void Lifecycle::begin() {
  services_.loop.on_signals({SIGTERM, SIGINT, SIGHUP}, [this](int signal) { signalled(signal); });
  if (const uint32_t period = watchdog_ms(); period != 0) {
    services_.loop.every(period, [this] { still_alive(); });
  }
  services_.loop.every(kStatsMs, [this] { write_stats(); });
  server_.start();
  log(Priority::notice, "listening on " + listener_.path());
  notify_ready("listening on " + listener_.path());
}

/// The loop runs, or we would not be here; the engine is alive if its step is not stuck.
void Lifecycle::still_alive() {
  if (services_.engine.counters().step_age_ms > kStuckStepMs) return;
  notify_alive();
  if (phase_ == Phase::serving) notify_status(status());
}

void Lifecycle::write_stats() {
  const bool idle = services_.in_flight == 0;
  idle_ticks_ = idle ? idle_ticks_ + 1 : 0;
  if (idle_ticks_ > 1 && idle_ticks_ % kIdleTicks != 0) return;
  services_.stats_page.write(totals_of(services_));
}

void Lifecycle::signalled(int signal) {
  if (signal == SIGHUP)
    return log(Priority::notice, "SIGHUP: the configuration is read at the start only; restart to change it");
  if (phase_ == Phase::serving) return drain();
  log(Priority::notice, "second signal: ending at once");
  listener_.close();
  std::_Exit(EXIT_SUCCESS);
}

void Lifecycle::drain() {
  phase_ = Phase::draining;
  const uint32_t seconds = services_.config.drain_seconds;
  const std::string what = "stopping: " + std::to_string(services_.in_flight) + " requests in flight, " +
                           std::to_string(seconds) + " s to end";
  log(Priority::notice, what);
  notify_stopping(what);
  notify_patience(seconds + 4 * kFlushMs / 1000 + kDiskSeconds);
  services_.draining = true;
  server_.stop_accepting();
  listener_.close();
  services_.on_idle = [this] { services_.loop.post([this] { flush(); }); };
  if (services_.in_flight == 0) return flush();
  services_.loop.after(seconds * 1000, [this] {
    if (phase_ != Phase::draining) return;
    log(Priority::warning, "time is up: cancelling " + std::to_string(services_.in_flight) + " requests");
    server_.cancel_all();
    services_.loop.after(kFlushMs, [this] { flush(); });
  });
}

void Lifecycle::flush() {
  if (phase_ == Phase::flushing) return;
  phase_ = Phase::flushing;
  services_.on_idle = nullptr;
  services_.loop.after(kFlushMs, [this] { services_.loop.stop(); });
  server_.finish([this] { services_.loop.stop(); });
}

}  // namespace ellm::daemon
