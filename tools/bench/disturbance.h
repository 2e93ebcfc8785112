// How much others computed on this machine meanwhile: /proc/stat less what this process and its children used.
#pragma once
#include <string>

namespace ellm::bench {

class Disturbance {
 public:
  explicit Disturbance(std::string proc_stat = "/proc/stat");
  /// Since the last call, or construction. Children count when they have been waited for.
  struct Usage {
    double cpu_seconds = 0;  // that there were: wall time x CPUs
    double others = 0;       // CPU seconds of others, what the hypervisor took included

    /// 0 where the time is too short for the clock's ticks to say.
    double share() const { return cpu_seconds < 0.4 ? 0 : others / cpu_seconds; }
    Usage& operator+=(const Usage& u) {
      cpu_seconds += u.cpu_seconds, others += u.others;
      return *this;
    }
  };
  Usage since_last();

 private:
  struct Times {
    double wall, busy, own;
  };
  Times read() const;
  std::string path_;
  double cpus_;
  Times last_;
};

/// Above this share a figure is not to be trusted.
inline constexpr double kDisturbed = 0.05;

}  // namespace ellm::bench
