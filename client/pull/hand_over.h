// The system's daemon as a place to put models: it may not be able to read where a user's files lie, so it is handed
// their descriptors.
#pragma once
#include <memory>
#include <string>
#include <vector>

#include "client/client.h"

namespace ellm::pull {

/// A daemon that another user runs and that takes models from this one; null where there is none. Says on stderr where
/// there is one that does not take them.
std::unique_ptr<client::Client> find_foreign_daemon();

/// The path of a model that the daemon has under this name, or empty. Throws PullError.
std::string find_at(client::Client& daemon, const std::string& name);

/// Has the daemon copy the files into its models directory. Returns the path there. Throws PullError.
std::string hand_over(client::Client& daemon, const std::string& name, const std::vector<std::string>& files,
                      bool replace);

}  // namespace ellm::pull
