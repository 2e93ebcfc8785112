#include "tools/bench/disturbance.h"

#include <sys/resource.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <fstream>
#include <sstream>

namespace ellm::bench {
namespace {

double cpu_seconds(int who) {
  rusage usage{};
  ::getrusage(who, &usage);
  const auto seconds = [](const timeval& t) {
    return static_cast<double>(t.tv_sec) + static_cast<double>(t.tv_usec) * 1e-6;
  };
  return seconds(usage.ru_utime) + seconds(usage.ru_stime);
}

}  // namespace

Disturbance::Disturbance(std::string proc_stat)
    : path_(std::move(proc_stat)), cpus_(static_cast<double>(std::max(1L, ::sysconf(_SC_NPROCESSORS_ONLN)))),
      last_(read()) {}

/// "cpu  user nice system idle iowait irq softirq steal …" in ticks.
Disturbance::Times Disturbance::read() const {
  std::ifstream in(path_);
  std::string word;
  in >> word;
  double busy = 0, ticks = 0;
  for (int field = 0; field < 8 && in >> ticks; ++field)
    if (field != 3 && field != 4) busy += ticks;
  const double wall = std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
  return {wall, busy / static_cast<double>(::sysconf(_SC_CLK_TCK)),
          cpu_seconds(RUSAGE_SELF) + cpu_seconds(RUSAGE_CHILDREN)};
}

Disturbance::Usage Disturbance::since_last() {
  const Times now = read(), was = last_;
  last_ = now;
  return {(now.wall - was.wall) * cpus_, std::max(0.0, (now.busy - was.busy) - (now.own - was.own))};
}

}  // namespace ellm::bench
