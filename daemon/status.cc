// See status.h.
#include "daemon/status.h"

#include <unistd.h>

#include <algorithm>
#include <chrono>

namespace ellm::daemon {
namespace {

client::RequestInfo info_of(const serve::RequestRow& row) {
  const bool batch = row.priority == serve::Priority::batch;
  return {row.id,
          row.uid,
          row.pid,
          row.model,
          row.kind,
          row.state,
          row.prompt_tokens,
          row.done_tokens,
          row.completion_tokens,
          row.age_ms,
          batch ? client::Priority::batch : client::Priority::interactive,
          row.deadline_left_ms ? std::max(*row.deadline_left_ms, 1.0) : 0,
          row.preemptions};
}

}  // namespace

client::StatusReply status_for(const Services& services, const Peer& peer) {
  client::StatusReply reply;
  reply.version = ELLM_VERSION;
  reply.kernels = services.kernels;
  reply.cpu = services.cpu;
  reply.threads = services.threads;
  reply.pid = static_cast<uint32_t>(::getpid());
  reply.uptime_s = std::chrono::duration<double>(std::chrono::steady_clock::now() - services.start).count();
  reply.models = services.registry.loaded();
  const serve::EngineCounters counters = services.engine.counters();
  if (counters.running + counters.queued != 0) {
    for (const serve::RequestRow& row : services.engine.requests()) {
      if (peer.admin || row.uid == peer.uid) reply.requests.push_back(info_of(row));
    }
  }
  reply.running = counters.running;
  reply.queued = counters.queued;
  reply.connections = services.connections;
  reply.served = counters.served;
  reply.prompt_tokens = counters.prompt_tokens;
  reply.cached_tokens = counters.cached_tokens;
  reply.completion_tokens = counters.completion_tokens;
  reply.warnings = services.registry.warnings();
  reply.admin = peer.admin;
  reply.stats_page = services.stats_page.path();
  if (const auto disk = services.registry.disk()) {
    const serve::DiskCounters c = disk->counters();
    reply.disk = {c.bytes, c.budget_bytes, c.pages_written, c.pages_read, c.pages_damaged, c.files_skipped, c.writing};
  }
  return reply;
}

}  // namespace ellm::daemon
