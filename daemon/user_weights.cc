// See user_weights.h.
#include "daemon/user_weights.h"

#include <pwd.h>

#include <algorithm>
#include <cerrno>
#include <charconv>
#include <optional>

#include "daemon/config.h"

namespace ellm::daemon {
namespace {

constexpr uint32_t kMostWeight = 1000;

std::optional<uint32_t> number_of(std::string_view text) {
  uint32_t value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (text.empty() || error != std::errc() || end != text.data() + text.size()) return std::nullopt;
  return value;
}

std::optional<uint32_t> uid_of(const std::string& name) {
  if (const auto uid = number_of(name)) return uid;
  std::vector<char> buffer(16384);
  struct passwd entry{};
  struct passwd* found = nullptr;
  while (::getpwnam_r(name.c_str(), &entry, buffer.data(), buffer.size(), &found) == ERANGE)
    buffer.resize(buffer.size() * 2);
  if (found == nullptr) return std::nullopt;
  return found->pw_uid;
}

}  // namespace

bool is_user_weight(const std::string& text) {
  const size_t colon = text.rfind(':');
  if (colon == std::string::npos || colon == 0) return false;
  const auto weight = number_of(std::string_view(text).substr(colon + 1));
  return weight && *weight >= 1 && *weight <= kMostWeight;
}

std::vector<std::pair<uint32_t, uint32_t>> user_weights(const std::vector<std::string>& texts) {
  std::vector<std::pair<uint32_t, uint32_t>> weights;
  for (const std::string& text : texts) {
    const size_t colon = text.rfind(':');
    const std::string name = text.substr(0, colon);
    const auto uid = uid_of(name);
    if (!uid) throw ConfigError("shares.weights has '" + text + "'; there is no user '" + name + "'");
    if (std::any_of(weights.begin(), weights.end(), [&](const auto& known) { return known.first == *uid; }))
      throw ConfigError("shares.weights has '" + text + "'; this user stands there twice");
    weights.emplace_back(*uid, *number_of(std::string_view(text).substr(colon + 1)));
  }
  return weights;
}

}  // namespace ellm::daemon
