// See server.h.
#include "daemon/server.h"

#include <fcntl.h>

#include <boost/asio/local/stream_protocol.hpp>
#include <boost/asio/steady_timer.hpp>
#include <map>
#include <vector>

#include "client/codec.h"
#include "daemon/log.h"
#include "daemon/session.h"

namespace ellm::daemon {

namespace asio = boost::asio;
using asio::local::stream_protocol;
using boost::system::error_code;

namespace {

constexpr auto kAcceptPause = std::chrono::milliseconds(100);  // after running out of descriptors

}  // namespace

struct Server::Impl : std::enable_shared_from_this<Impl> {
  Impl(Services& s, int fd, int64_t gid)
      : services(s), admin_gid(gid), acceptor(s.loop.context(), stream_protocol(), fd), pause(s.loop.context()) {}

  Services& services;
  const int64_t admin_gid;
  stream_protocol::acceptor acceptor;
  asio::steady_timer pause;
  std::map<Session*, std::shared_ptr<Session>> sessions;
  std::function<void()> closed;
  bool complained = false;

  void accept() {
    acceptor.async_accept([self = shared_from_this()](error_code error, stream_protocol::socket socket) {
      if (error == asio::error::operation_aborted || !self->acceptor.is_open()) return;
      if (error) return self->wait_and_accept(error);
      self->complained = false;
      try {
        self->admit(std::move(socket));
      } catch (const std::exception& e) {
        log_failure("a connection is refused", e);
      }
      self->accept();
    });
  }

  /// Out of descriptors, usually: others must close first.
  void wait_and_accept(error_code error) {
    if (!std::exchange(complained, true)) log(Priority::error, "cannot accept connections: " + error.message());
    pause.expires_after(kAcceptPause);
    pause.async_wait([self = shared_from_this()](error_code stopped) {
      if (!stopped && self->acceptor.is_open()) self->accept();
    });
  }

  void admit(stream_protocol::socket socket) {
    const Peer peer = peer_of(socket.native_handle(), admin_gid);
    const auto& limits = services.config.limits;
    auto holdings = services.accounts.of(peer.uid);
    Charge charge = Charge::take(holdings, &Holdings::connections, 1, limits.connections_per_user);
    if (!charge) return refuse(socket, "this user has too many connections");
    if (sessions.size() >= limits.connections) return refuse(socket, "there are too many connections");
    const auto session = start_session(services, socket.release(), peer, std::move(holdings), std::move(charge),
                                       [weak = weak_from_this()](Session* ended) {
                                         if (const auto self = weak.lock()) self->ended(ended);
                                       });
    sessions.emplace(session.get(), session);
    services.connections = static_cast<uint32_t>(sessions.size());
  }

  void refuse(stream_protocol::socket& socket, const std::string& why) {
    constexpr uint32_t kRetryMs = 1000;
    const std::string frame = client::encode_frame(client::Error{0, client::ErrorCode::busy, why, kRetryMs});
    error_code ignored;
    socket.non_blocking(true, ignored);
    socket.write_some(asio::buffer(frame), ignored);
  }

  void ended(Session* session) {
    sessions.erase(session);
    services.connections = static_cast<uint32_t>(sessions.size());
    if (sessions.empty() && closed) services.loop.post(std::exchange(closed, nullptr));
  }

  std::vector<std::shared_ptr<Session>> all() const {
    std::vector<std::shared_ptr<Session>> list;
    for (const auto& [key, session] : sessions) list.push_back(session);
    return list;
  }
};

Server::Server(Services& services, Listener& listener, int64_t admin_gid)
    : impl_(std::make_shared<Impl>(services, ::fcntl(listener.fd(), F_DUPFD_CLOEXEC, 0), admin_gid)) {}

Server::~Server() = default;

void Server::start() { impl_->accept(); }

void Server::stop_accepting() {
  error_code ignored;
  impl_->acceptor.close(ignored);
  impl_->pause.cancel();
}

void Server::cancel_all() {
  for (const auto& session : impl_->all()) session->cancel_all();
}

void Server::finish(std::function<void()> closed) {
  if (impl_->sessions.empty()) return closed();
  impl_->closed = std::move(closed);
  for (const auto& session : impl_->all()) session->finish();
}

}  // namespace ellm::daemon
