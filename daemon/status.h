// What `status` answers: the daemon at this moment, as a peer may see it. I/O thread.
#pragma once
#include "client/messages.h"
#include "daemon/peer.h"
#include "daemon/services.h"

namespace ellm::daemon {

/// But for the request's id.
client::StatusReply status_for(const Services& services, const Peer& peer);

}  // namespace ellm::daemon
