// Writes client/stats_page.h's page, in a file of its own that goes with the daemon. One owner, I/O thread.
#pragma once
#include <string>

#include "client/stats_page.h"

namespace ellm::daemon {

struct Services;

class StatsPage {
 public:
  /// Makes the file in place of an older one. Where that fails, path() is empty and fault() says why: nothing depends
  /// on it.
  explicit StatsPage(const std::string& path);
  ~StatsPage();
  StatsPage(const StatsPage&) = delete;
  StatsPage& operator=(const StatsPage&) = delete;

  void write(const client::Totals& totals);
  const std::string& path() const { return path_; }
  const std::string& fault() const { return fault_; }

 private:
  client::StatsPageData* data_ = nullptr;
  std::string path_, fault_;
};

/// $RUNTIME_DIRECTORY/stats, where systemd makes one, else SOCKET.stats.
std::string stats_page_path(const std::string& socket);

/// How things stand now.
client::Totals totals_of(const Services& services);

}  // namespace ellm::daemon
