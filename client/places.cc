#include "client/places.h"

#include <unistd.h>

#include <cstdlib>

namespace ellm::client {
namespace {

std::string variable(const char* name) {
  const char* value = std::getenv(name);
  return value == nullptr ? "" : value;
}

}  // namespace

std::string default_socket_path() {
  if (const std::string set = variable("ELLM_SOCKET"); !set.empty()) return set;
  const std::string system = "/run/ellm/ellmd.sock";
  const std::string runtime = variable("XDG_RUNTIME_DIR");
  if (!runtime.empty()) {
    const std::string own = runtime + "/ellm/ellmd.sock";
    if (::access(own.c_str(), F_OK) == 0 || ::access(system.c_str(), F_OK) != 0) return own;
  }
  return system;
}

std::string state_directory() {
  if (const std::string set = variable("STATE_DIRECTORY"); !set.empty()) return set;
  if (const std::string state = variable("XDG_STATE_HOME"); !state.empty()) return state + "/ellm";
  const std::string home = variable("HOME");
  return home.empty() ? "" : home + "/.local/state/ellm";
}

std::string models_directory() {
  const std::string system = kSystemModels;
  if (::access(system.c_str(), W_OK | X_OK) == 0) return system;
  const std::string data = variable("XDG_DATA_HOME");
  return (data.empty() ? variable("HOME") + "/.local/share" : data) + "/ellm/models";
}

}  // namespace ellm::client
