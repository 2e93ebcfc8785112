// See hand_over.h.
#include "client/pull/hand_over.h"

#include <sys/stat.h>
#include <unistd.h>

#include <cstdio>

#include "client/places.h"
#include "client/pull/failure.h"

namespace ellm::pull {
namespace {

int exit_code(client::ErrorCode code) {
  switch (code) {
    case client::ErrorCode::denied: return EX_NOPERM;
    case client::ErrorCode::busy:
    case client::ErrorCode::shutting_down: return EX_TEMPFAIL;
    case client::ErrorCode::bad_request: return EX_USAGE;
    case client::ErrorCode::model_failed: return EX_CANTCREAT;
    default: return EX_UNAVAILABLE;
  }
}

template <class Work>
auto translated(Work&& work) {
  try {
    return work();
  } catch (const client::ClientError& error) {
    throw PullError(exit_code(error.code()), error.what());
  } catch (const client::ConnectionError& error) {
    throw PullError(EX_UNAVAILABLE, error.what());
  }
}

}  // namespace

std::unique_ptr<client::Client> find_foreign_daemon() {
  const std::string socket = client::default_socket_path();
  struct stat status{};
  if (::stat(socket.c_str(), &status) != 0 || status.st_uid == ::geteuid()) return nullptr;
  try {
    client::ClientOptions options;
    options.socket_path = socket;
    options.software = "ellm-pull " ELLM_VERSION;
    options.wait = std::chrono::milliseconds(0);
    auto daemon = std::make_unique<client::Client>(std::move(options));
    if (daemon->knows(client::kFeatureManage) && daemon->status().admin) return daemon;
    std::fprintf(
        stderr,
        "ellm pull: the ellmd at %s takes models from administrators only; this one is for an ellmd of your own\n",
        socket.c_str());
  } catch (const std::exception&) {
    // Not there, or not to be used: the model goes where a daemon of the user's own finds it.
  }
  return nullptr;
}

std::string find_at(client::Client& daemon, const std::string& name) {
  for (const client::ModelInfo& model : translated([&] { return daemon.models(); })) {
    if (model.name == name) return model.path;
  }
  return {};
}

std::string hand_over(client::Client& daemon, const std::string& name, const std::vector<std::string>& files,
                      bool replace) {
  return translated(
      [&] { return daemon.add_model(name, files, replace ? client::Adding::replace : client::Adding::install).path; });
}

}  // namespace ellm::pull
