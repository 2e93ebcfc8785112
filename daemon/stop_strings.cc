// See stop_strings.h.
#include "daemon/stop_strings.h"

#include <algorithm>
#include <utility>

namespace ellm::daemon {

StopFinder::StopFinder(std::vector<std::string> stops) : stops_(std::move(stops)) {
  for (const auto& stop : stops_) longest_ = std::max(longest_, stop.size());
}

StopFinder::Piece StopFinder::push(std::string_view text) {
  held_ += text;
  size_t begin = 0, end = std::string::npos;
  for (const auto& stop : stops_) {
    const size_t at = held_.find(stop);
    if (at == std::string::npos) continue;
    const size_t stop_end = at + stop.size();
    if (stop_end < end || (stop_end == end && at < begin)) {
      begin = at;
      end = stop_end;
    }
  }
  if (end != std::string::npos) {
    Piece piece{held_.substr(0, begin), true};
    held_.clear();
    return piece;
  }
  // The longest end of the text that could become a stop string stays back.
  size_t keep = std::min(held_.size(), longest_ == 0 ? 0 : longest_ - 1);
  for (; keep > 0; --keep) {
    const std::string_view tail = std::string_view(held_).substr(held_.size() - keep);
    if (std::any_of(stops_.begin(), stops_.end(), [&](const auto& stop) { return stop.starts_with(tail); })) break;
  }
  Piece piece{held_.substr(0, held_.size() - keep)};
  held_.erase(0, held_.size() - keep);
  return piece;
}

std::string StopFinder::finish() { return std::exchange(held_, {}); }

}  // namespace ellm::daemon
