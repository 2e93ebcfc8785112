// See bar.h.
#include "client/pull/bar.h"

#include <unistd.h>

#include <algorithm>
#include <cstdio>

namespace ellm::pull {
namespace {

constexpr int kWidth = 30;
constexpr auto kEvery = std::chrono::milliseconds(100);

std::string megabytes(double bytes) {
  char text[32];
  std::snprintf(text, sizeof text, bytes < 1e8 ? "%.1f MB" : "%.0f MB", bytes / 1e6);
  return text;
}

}  // namespace

Bar::Bar(std::string name) : name_(std::move(name)), terminal_(::isatty(STDERR_FILENO) != 0) {}

Bar::~Bar() {
  if (!what_.empty()) std::fputs("\r\033[K", stderr);
}

void Bar::show(const std::string& what, uint64_t done, uint64_t total) {
  if (!terminal_) return;
  const Clock::time_point now = Clock::now();
  if (what != what_) {
    what_ = what;
    begun_ = now;
    begun_at_ = done;
  } else if (now - drawn_ < kEvery && done != total) {
    return;
  }
  drawn_ = now;
  std::string line = name_ + ": " + what + " ";
  if (total != 0) {
    const auto filled = static_cast<size_t>(std::min(done, total) * kWidth / total);
    line += "[" + std::string(filled, '#') + std::string(kWidth - filled, ' ') + "] " +
            std::to_string(100 * std::min(done, total) / total) + " % of " + megabytes(static_cast<double>(total));
  } else {
    line += megabytes(static_cast<double>(done));
  }
  const double seconds = std::chrono::duration<double>(now - begun_).count();
  if (seconds >= 1 && done > begun_at_) {
    const double rate = static_cast<double>(done - begun_at_) / seconds;
    line += ", " + megabytes(rate) + "/s";
    if (total > done)
      line += ", " + std::to_string(static_cast<uint64_t>(static_cast<double>(total - done) / rate) + 1) + " s left";
  }
  std::fprintf(stderr, "\r\033[K%s", line.c_str());
  std::fflush(stderr);
}

}  // namespace ellm::pull
