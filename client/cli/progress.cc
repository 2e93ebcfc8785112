// See progress.h.
#include "client/cli/progress.h"

#include <algorithm>

#include "client/cli/output.h"

namespace ellm::cli {
namespace {

constexpr size_t kWidth = 24;
constexpr auto kEvery = std::chrono::milliseconds(100);

}  // namespace

Progress::Progress(size_t done, size_t total) : before_(done), total_(total) {}

Progress::~Progress() {
  if (drawn_ != Clock::time_point()) write_status("");
}

void Progress::show(size_t done, const std::string& more) {
  const Clock::time_point now = Clock::now();
  if (!error_is_terminal() || now - drawn_ < kEvery) return;
  drawn_ = now;
  const size_t filled = kWidth * done / std::max<size_t>(total_, 1);
  std::string line = "[" + std::string(filled, '#') + std::string(kWidth - filled, ' ') + "]";
  line += format(" %zu/%zu", done, total_);
  if (!more.empty()) line += ", " + more;
  const double seconds = std::chrono::duration<double>(now - begun_).count();
  if (seconds >= 2 && done > before_) {
    const double share = static_cast<double>(total_ - done) / static_cast<double>(done - before_);
    line += ", " + human_seconds(seconds * share) + " left";
  }
  write_status(line);
}

}  // namespace ellm::cli
