// One connection's side of the protocol: who speaks, whether a request is admitted, and those that are in flight. What
// each request does stands in completion_requests, text_requests, model_requests, cache_requests and status. I/O
// thread.
#pragma once
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <variant>

#include "client/codec.h"
#include "daemon/descriptor.h"
#include "daemon/peer.h"
#include "daemon/services.h"

namespace ellm::daemon {

inline constexpr uint32_t kRequestRetryMs = 200;  // after which a request that was refused as busy may come again

/// What a request holds of its user's shares. It goes with the message, through queues and pools, and not with the
/// answer: a cancelled request pays until nobody has its message any more.
struct Charges {
  Charge request, bytes;
};
/// A message with what it holds.
template <class Request>
struct Paid {
  Request message;
  Charges charges;
};

/// A request that is being worked on.
class Job {
 public:
  virtual ~Job() = default;
  /// Ends it soon; what it answers then is its own affair.
  virtual void cancel() = 0;
};

class Conversation : public std::enable_shared_from_this<Conversation> {
 public:
  using Decoded = std::variant<client::Message, client::DecodeFailure>;

  /// `send` takes whole frames; it is not called after close().
  Conversation(Services& services, const Peer& peer, std::shared_ptr<Holdings> holdings,
               std::function<void(std::string)> send);

  /// A frame that arrived; `bytes` pays for it as long as its message is anywhere. False: the connection is to be
  /// closed. `handed`: the open files that came with it; closed where the message does not announce them.
  bool receive(Decoded decoded, Charge bytes, HandedOver handed = {});
  /// A frame that cannot be read at all.
  void refuse(client::ErrorCode code, const std::string& why);
  /// The connection is gone: cancels everything.
  void close();
  /// The same, while the connection lives: every request answers that it was cancelled.
  void cancel_all();

  // ---- for the requests (…_requests.h, completion.h) ----

  Services& services() { return services_; }
  const Peer& peer() const { return peer_; }
  /// Limits and sense of a new request, and what it is charged for, as that many. Absent: an error was sent.
  std::optional<Charges> admit(uint32_t id, uint32_t requests = 1);
  /// The namespace that a request names, if it does. False: an error was sent.
  bool find_namespace(uint32_t id, const std::string& name, std::optional<uint64_t>& found);
  /// It is refused.
  void error(uint32_t id, client::ErrorCode code, const std::string& message, uint32_t retry_after_ms = 0);
  /// It is refused: only an administrator may do that.
  void deny(uint32_t id, const std::string& what);
  /// It is in flight, until it is finished.
  void add(uint32_t id, std::shared_ptr<Job> job);
  // `send` an event, `finish` with the last word. No effect after close().
  void send(const client::Message& message);
  void finish(uint32_t id, const client::Message& message);
  void finish_frame(uint32_t id, std::string frame);

 private:
  // One handler per request; the replies that only a client receives share one. A new message without one does not
  // compile.
  void on(client::Hello&& hello);
  void on(client::Generate&& request);
  void on(client::Chat&& request);
  void on(client::Tokenize&& request);
  void on(client::Detokenize&& request);
  void on(client::RenderTemplate&& request);
  void on(client::Score&& request);
  void on(client::Cancel&& request);
  void on(client::Status&& request);
  void on(client::Models&& request);
  void on(client::AddModel&& request);
  void on(client::Cache&& request);
  template <class Reply>
    requires(Reply::kTag >= 32)
  void on(Reply&&) {
    error(0, client::ErrorCode::bad_request, std::string("a client does not send '") + Reply::kName + "'");
    closing_ = true;
  }

  Services& services_;
  const Peer peer_;
  const std::shared_ptr<Holdings> holdings_;
  std::function<void(std::string)> send_;
  bool greeted_ = false, knows_denied_ = false, closing_ = false, closed_ = false;
  Charge arriving_;    // of the frame that is being handled
  HandedOver handed_;  // with it
  std::map<uint32_t, std::shared_ptr<Job>> in_flight_;
};

}  // namespace ellm::daemon
