// See stats_page.h.
#include "daemon/stats_page.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <chrono>
#include <cstdlib>
#include <cstring>
#include <new>
#include <utility>

#include "daemon/services.h"

namespace ellm::daemon {
namespace {

using client::StatsPageData;

double seconds(std::chrono::steady_clock::time_point time) {
  return std::chrono::duration<double>(time.time_since_epoch()).count();
}

}  // namespace

StatsPage::StatsPage(const std::string& path) {
  // A new file under another name: who has mapped an older one keeps it, and nobody sees one that is half made.
  const std::string made = path + ".new";
  ::unlink(made.c_str());
  const int fd = ::open(made.c_str(), O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC | O_NOFOLLOW, 0644);
  void* at = MAP_FAILED;
  if (fd >= 0 && ::fchmod(fd, 0644) == 0 && (errno = ::posix_fallocate(fd, 0, sizeof(StatsPageData))) == 0)
    at = ::mmap(nullptr, sizeof(StatsPageData), PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
  if (at != MAP_FAILED) {
    data_ = new (at) StatsPageData{StatsPageData::kMagic, StatsPageData::kLayout, 0, sizeof(client::Totals), {}};
    if (::rename(made.c_str(), path.c_str()) == 0) path_ = path;
  }
  if (path_.empty()) {
    fault_ = path + ": " + std::strerror(errno);
    if (fd >= 0) ::unlink(made.c_str());
  }
  if (fd >= 0) ::close(fd);
}

StatsPage::~StatsPage() {
  if (!path_.empty()) ::unlink(path_.c_str());
  if (data_) ::munmap(data_, sizeof *data_);
}

void StatsPage::write(const client::Totals& totals) {
  if (!data_) return;
  uint64_t words[StatsPageData::kWords];
  std::memcpy(words, &totals, sizeof totals);
  const uint64_t sequence = data_->sequence.load(std::memory_order_relaxed);
  data_->sequence.store(sequence + 1, std::memory_order_relaxed);
  std::atomic_thread_fence(std::memory_order_release);
  for (size_t w = 0; w < StatsPageData::kWords; ++w) data_->words[w].store(words[w], std::memory_order_relaxed);
  data_->sequence.store(sequence + 2, std::memory_order_release);
}

std::string stats_page_path(const std::string& socket) {
  const char* directory = std::getenv("RUNTIME_DIRECTORY");
  return directory && *directory ? std::string(directory) + "/stats" : socket + ".stats";
}

client::Totals totals_of(const Services& services) {
  const serve::EngineCounters counters = services.engine.counters();
  client::Totals t;
  t.pid = static_cast<uint64_t>(::getpid());
  t.start_s = seconds(services.start);
  t.updated_s = seconds(std::chrono::steady_clock::now());
  t.threads = services.threads;
  t.connections = services.connections;
  t.running = counters.running;
  t.queued = counters.queued;
  t.served = counters.served;
  t.steps = counters.steps;
  t.prompt_tokens = counters.prompt_tokens;
  t.cached_tokens = counters.cached_tokens;
  t.completion_tokens = counters.completion_tokens;
  t.prefill_rows = counters.prefill_rows;
  t.decode_rows = counters.decode_rows;
  t.step_ms = counters.mean_step_ms;
  t.preemptions = counters.preemptions;
  for (const serve::ModelRow& row : services.engine.models()) {
    ++t.models;
    t.kv_tokens += uint64_t{row.pages} * shm::kPageTokens;
    t.kv_free_tokens += uint64_t{row.free_pages} * shm::kPageTokens;
    t.kv_cached_tokens += uint64_t{row.cached_pages} * shm::kPageTokens;
    if (row.model) t.weight_bytes += row.model->weight_bytes();
  }
  return t;
}

}  // namespace ellm::daemon
