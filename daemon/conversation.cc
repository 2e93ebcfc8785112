// See conversation.h.
#include "daemon/conversation.h"

#include <algorithm>
#include <utility>
#include <vector>

#include "client/utf8.h"
#include "daemon/cache_requests.h"
#include "daemon/completion_requests.h"
#include "daemon/model_requests.h"
#include "daemon/one_reply.h"
#include "daemon/status.h"
#include "daemon/text_requests.h"

namespace ellm::daemon {

using client::ErrorCode;

Conversation::Conversation(Services& services, const Peer& peer, std::shared_ptr<Holdings> holdings,
                           std::function<void(std::string)> send)
    : services_(services), peer_(peer), holdings_(std::move(holdings)), send_(std::move(send)) {}

// ---- frames in and out ----------------------------------------------------------------------------------------------

bool Conversation::receive(Decoded decoded, Charge bytes, HandedOver handed) {
  if (closing_ || closed_) return false;
  if (const auto* failure = std::get_if<client::DecodeFailure>(&decoded)) {
    // Without an id, or before hello, nobody knows what this peer speaks.
    if (failure->id == 0 || !greeted_) closing_ = true;
    error(failure->id, failure->code, failure->message);
    return !closing_;
  }
  auto& message = std::get<client::Message>(decoded);
  if (!greeted_ && !std::holds_alternative<client::Hello>(message)) {
    refuse(ErrorCode::bad_request, "a connection begins with 'hello'");
    return false;
  }
  arriving_ = std::move(bytes);
  handed_ = std::move(handed);
  std::visit([this](auto&& m) { on(std::move(m)); }, std::move(message));
  arriving_ = Charge();
  handed_ = HandedOver();
  return !closing_;
}

void Conversation::refuse(ErrorCode code, const std::string& why) {
  closing_ = true;
  error(0, code, why);
}

void Conversation::close() {
  if (std::exchange(closed_, true)) return;
  const auto gone = std::exchange(in_flight_, {});
  services_.leave(gone.size());
  for (auto& [id, job] : gone) job->cancel();
}

void Conversation::cancel_all() {
  std::vector<std::shared_ptr<Job>> jobs;  // cancelling takes them out of the map
  for (auto& [id, job] : in_flight_) jobs.push_back(job);
  for (auto& job : jobs) job->cancel();
}

void Conversation::send(const client::Message& message) {
  if (!closed_) send_(client::encode_frame(message));
}

void Conversation::finish(uint32_t id, const client::Message& message) {
  if (const auto* failure = std::get_if<client::Error>(&message)) services_.metrics.error(failure->code);
  if (closed_) return;
  finish_frame(id, frame_of(id, [&] { return message; }));
}

void Conversation::finish_frame(uint32_t id, std::string frame) {
  if (closed_) return;
  const auto found = in_flight_.find(id);
  if (found == in_flight_.end()) return;  // cancelled meanwhile
  const std::shared_ptr<Job> kept = std::move(found->second);
  in_flight_.erase(found);
  send_(std::move(frame));
  services_.leave(1);
}

void Conversation::error(uint32_t id, ErrorCode code, const std::string& message, uint32_t retry_after_ms) {
  if (code == ErrorCode::denied && !knows_denied_) code = ErrorCode::bad_request;
  services_.metrics.error(code);
  send(client::Error{id, code, message, retry_after_ms});
}

// ---- requests in general --------------------------------------------------------------------------------------------

std::optional<Charges> Conversation::admit(uint32_t id, uint32_t requests) {
  const auto& limits = services_.config.limits;
  if (id == 0) {
    refuse(ErrorCode::bad_request, "id is 0; a request's id is 1 or more");
  } else if (in_flight_.contains(id)) {
    // No answer under the id itself: it would end the request that has it.
    refuse(ErrorCode::bad_request, "id " + std::to_string(id) + " is in use by a request that has not ended");
  } else if (services_.draining) {
    error(id, ErrorCode::shutting_down, "ellmd is shutting down");
  } else if (in_flight_.size() >= limits.requests_per_connection) {
    error(id, ErrorCode::busy,
          "this connection has " + std::to_string(in_flight_.size()) + " unfinished requests, the limit",
          kRequestRetryMs);
  } else if (!arriving_) {
    error(id, ErrorCode::busy, "this user's unfinished requests hold too many bytes", kRequestRetryMs);
  } else if (Charge request = Charge::take(holdings_, &Holdings::requests, requests, limits.requests_per_user);
             !request) {
    error(id, ErrorCode::busy, "this user has too many unfinished requests", kRequestRetryMs);
  } else {
    return Charges{std::move(request), std::move(arriving_)};
  }
  return std::nullopt;
}

void Conversation::add(uint32_t id, std::shared_ptr<Job> job) {
  in_flight_[id] = std::move(job);
  ++services_.in_flight;
}

bool Conversation::find_namespace(uint32_t id, const std::string& name, std::optional<uint64_t>& found) {
  if (name.empty()) return true;
  const Namespaces& namespaces = services_.namespaces;
  const auto* named = namespaces.find(name);
  if (named == nullptr) {
    const bool printable = name.size() <= 64 && client::is_utf8(name);
    error(id, ErrorCode::bad_request,
          "there is no namespace '" + (printable ? name : "…") + "' (see [namespaces] of ellmd.toml)");
    return false;
  }
  if (!namespaces.may_use(peer_, *named)) {
    error(id, ErrorCode::denied, "namespace '" + name + "' is for the members of group " + named->group);
    return false;
  }
  found = named->id;
  return true;
}

void Conversation::deny(uint32_t id, const std::string& what) {
  const std::string& group = services_.config.admin_group;
  error(id, ErrorCode::denied,
        "only an administrator may " + what + " (root, the daemon's user" +
            (group.empty() ? ")" : ", members of group " + group + ")"));
}

// ---- each request ---------------------------------------------------------------------------------------------------

void Conversation::on(client::Hello&& hello) {
  if (greeted_) return refuse(ErrorCode::bad_request, "hello twice");
  if (hello.version != client::kProtocolVersion) {
    return refuse(ErrorCode::unsupported_version, "ellmd " ELLM_VERSION " speaks protocol version " +
                                                      std::to_string(client::kProtocolVersion) + ", not " +
                                                      std::to_string(hello.version));
  }
  greeted_ = true;
  const auto& features = hello.features;
  knows_denied_ = std::find(features.begin(), features.end(), client::kFeatureDenied) != features.end();
  send(client::Hello{
      client::kProtocolVersion,
      "ellmd " ELLM_VERSION,
      {client::kFeatureManage, client::kFeatureCache, client::kFeatureSamples, client::kFeatureDeadline}});
}

void Conversation::on(client::Cancel&& request) {
  const auto found = in_flight_.find(request.target);
  if (found == in_flight_.end()) {
    return error(request.id, ErrorCode::no_such_request,
                 "no request with id " + std::to_string(request.target) + " is in flight on this connection");
  }
  const auto job = found->second;  // cancelling may take it out of the map
  send(client::Ok{request.id});
  job->cancel();
}

void Conversation::on(client::Status&& request) {
  client::StatusReply reply = status_for(services_, peer_);
  reply.id = request.id;
  send(reply);
}

void Conversation::on(client::Generate&& request) { complete(*this, std::move(request)); }
void Conversation::on(client::Chat&& request) { complete(*this, std::move(request)); }
void Conversation::on(client::Score&& request) { complete(*this, std::move(request)); }
void Conversation::on(client::Tokenize&& request) { answer(*this, std::move(request)); }
void Conversation::on(client::Detokenize&& request) { answer(*this, std::move(request)); }
void Conversation::on(client::RenderTemplate&& request) { answer(*this, std::move(request)); }
void Conversation::on(client::Models&& request) { answer(*this, std::move(request)); }
void Conversation::on(client::AddModel&& request) { answer(*this, std::move(request), std::move(handed_)); }
void Conversation::on(client::Cache&& request) { answer(*this, std::move(request)); }

}  // namespace ellm::daemon
