// Requests about what is cached: who may ask for what, and their way to the engine's thread and back. I/O thread.
#pragma once
#include "daemon/conversation.h"

namespace ellm::daemon {

void answer(Conversation& conversation, client::Cache&& request);

}  // namespace ellm::daemon
