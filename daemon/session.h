// One connection's bytes: frames in, within limits, and a bounded queue of frames out. I/O thread.
#pragma once
#include <functional>
#include <memory>

#include "daemon/peer.h"
#include "daemon/services.h"

namespace ellm::daemon {

class Session {
 public:
  virtual ~Session() = default;
  /// Every unfinished request answers that it was cancelled.
  virtual void cancel_all() = 0;
  /// Closes when what is queued has been sent.
  virtual void finish() = 0;
};

/// Takes over a connected socket, also when it throws. `ended` is called once, last; not from within start_session.
std::shared_ptr<Session> start_session(Services& services, int fd, const Peer& peer, std::shared_ptr<Holdings> holdings,
                                       Charge connection, std::function<void(Session*)> ended);

}  // namespace ellm::daemon
