// See namespaces.h.
#include "daemon/namespaces.h"

#include <algorithm>

#include "daemon/listener.h"
#include "daemon/peer.h"
#include "shm/page_key.h"

namespace ellm::daemon {
namespace {

constexpr std::string_view kGroup = "group:";
constexpr size_t kLongestName = 64;

bool is_name(const std::string& name) {
  const auto is_allowed = [](unsigned char c) {
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '_' || c == '-' ||
           c == '.';
  };
  return !name.empty() && name.size() <= kLongestName && std::ranges::all_of(name, is_allowed) &&
         !std::ranges::all_of(name, [](char c) { return c >= '0' && c <= '9'; });
}

}  // namespace

Namespaces::Namespaces(const Config& config) {
  for (const auto& [name, who] : config.namespaces) {
    const std::string key = "namespaces." + name;
    if (!is_name(name)) {
      throw ConfigError(key +
                        ": a namespace's name has at most 64 letters, digits, '-', '_' and '.', and not digits alone");
    }
    Named named{name, "", shm::namespace_of_name(name), std::nullopt};
    if (who.starts_with(kGroup)) {
      named.group = who.substr(kGroup.size());
      if (named.group.empty()) throw ConfigError(key + " is '" + who + "'; expected group:NAME or everybody");
      named.gid = static_cast<uint32_t>(group_number(named.group, key));
    } else if (who != "everybody") {
      throw ConfigError(key + " is '" + who + "'; expected group:NAME or everybody");
    }
    named_.push_back(std::move(named));
  }
}

const Namespaces::Named* Namespaces::find(const std::string& name) const {
  const auto found = std::ranges::find(named_, name, &Named::name);
  return found == named_.end() ? nullptr : &*found;
}

const Namespaces::Named* Namespaces::find(uint64_t id) const {
  const auto found = std::ranges::find(named_, id, &Named::id);
  return found == named_.end() ? nullptr : &*found;
}

bool Namespaces::may_use(const Peer& peer, const Named& named) const {
  return peer.admin || !named.gid || std::ranges::find(peer.groups, *named.gid) != peer.groups.end();
}

std::vector<uint64_t> Namespaces::of(const Peer& peer) const {
  std::vector<uint64_t> ids;
  for (const Named& named : named_) {
    if (may_use(peer, named)) ids.push_back(named.id);
  }
  return ids;
}

std::string Namespaces::describe(uint64_t id) const {
  if (shm::is_uid_namespace(id)) return "uid " + std::to_string(id);
  const Named* named = find(id);
  return named ? named->name : "(no longer named)";
}

}  // namespace ellm::daemon
