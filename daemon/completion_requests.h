// Requests that the engine runs: admitted, and made into completions. I/O thread.
#pragma once
#include <cstdint>

#include "daemon/conversation.h"

namespace ellm::daemon {

void complete(Conversation& conversation, client::Generate&& request);
void complete(Conversation& conversation, client::Chat&& request);
void complete(Conversation& conversation, client::Score&& request);

/// Of a `cache` request that was admitted: its prompt is computed, so that it is cached.
void warm(Conversation& conversation, client::Cache&& request, Charges charges, uint64_t name_space);

}  // namespace ellm::daemon
