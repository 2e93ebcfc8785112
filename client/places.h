// Where things are, for client and daemon alike (defaults; every one can be overridden).
#pragma once
#include <string>

namespace ellm::client {

/// Where a client looks for the daemon: $ELLM_SOCKET, else the first that exists of $XDG_RUNTIME_DIR/ellm/ellmd.sock
/// and /run/ellm/ellmd.sock, else the last of the two that could be.
std::string default_socket_path();

/// Where the daemon remembers things over restarts: $STATE_DIRECTORY, else $XDG_STATE_HOME/ellm (~/.local/state/ellm);
/// empty where there is no home.
std::string state_directory();

inline constexpr const char* kSystemModels = "/var/lib/ellm/models";

/// kSystemModels where it exists and this process may write there, else $XDG_DATA_HOME/ellm/models
/// (~/.local/share/ellm/models).
std::string models_directory();

}  // namespace ellm::client
