// Requests about the models themselves: listing, loading, unloading, removing and adding them. I/O thread.
#pragma once
#include "daemon/conversation.h"
#include "daemon/descriptor.h"

namespace ellm::daemon {

void answer(Conversation& conversation, client::Models&& request);
/// `handed`: the open files that came with it; closed where the message does not announce them.
void answer(Conversation& conversation, client::AddModel&& request, HandedOver handed);

}  // namespace ellm::daemon
