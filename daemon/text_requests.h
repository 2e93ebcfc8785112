// Requests that turn text into tokens and back, and render templates: in the preparation pool. I/O thread.
#pragma once
#include "daemon/conversation.h"

namespace ellm::daemon {

void answer(Conversation& conversation, client::Tokenize&& request);
void answer(Conversation& conversation, client::Detokenize&& request);
void answer(Conversation& conversation, client::RenderTemplate&& request);

}  // namespace ellm::daemon
