// See completion_requests.h.
#include "daemon/completion_requests.h"

#include <algorithm>
#include <memory>
#include <type_traits>
#include <utility>

#include "daemon/chat_prompt.h"
#include "daemon/completion.h"
#include "daemon/validate.h"

namespace ellm::daemon {
namespace {

using client::ErrorCode;

// What a completion's prompt is made of, in the pool.
Prompt prompt_of(const client::Generate& r, const LoadedModel& loaded) {
  refuse_fault(text_fault(r));
  return {r.use_tokens ? r.tokens : text_prompt(*loaded.model, r.prompt)};
}
Prompt prompt_of(const client::Chat& r, const LoadedModel& loaded) {
  refuse_fault(text_fault(r));
  return chat_prompt(loaded.name, *loaded.model, r);
}
Prompt prompt_of(const client::Score& r, const LoadedModel& loaded) {
  refuse_fault(text_fault(r));
  return {r.use_tokens ? r.tokens : text_prompt(*loaded.model, r.text)};
}

Prompt prompt_of(const client::Cache& r, const LoadedModel& loaded) {
  if (r.messages.empty()) {
    client::Generate plain;
    plain.prompt = r.text;
    return prompt_of(plain, loaded);
  }
  client::Chat chat;
  chat.messages = r.messages;
  chat.tools = r.tools;
  chat.variables = r.variables;
  return prompt_of(chat, loaded);
}

/// Makes the completion whose prompt is of the message `r`.
template <class Request>
void start(Conversation& conversation, CompletionRequest request, Request&& r, Charges charges) {
  request.id = r.id;
  request.model = r.model;
  request.weight = PreparePool::weight_of(charges.bytes.amount());
  const auto paid = std::make_shared<Paid<Request>>(std::move(r), std::move(charges));
  request.prompt = [paid](const LoadedModel& loaded) { return prompt_of(paid->message, loaded); };
  const uint32_t id = request.id;
  auto completion = std::make_shared<Completion>(conversation.services(), conversation.peer(),
                                                 conversation.weak_from_this(), std::move(request));
  conversation.add(id, completion);
  completion->start();
}

template <class Request>
void complete_as(Conversation& conversation, Request&& r, const char* kind) {
  const uint32_t most_samples = conversation.services().config.limits.most_samples();
  uint32_t samples = 1;
  if constexpr (requires { r.n; }) {
    samples = std::clamp(r.n, 1u, most_samples);
  }
  auto charges = conversation.admit(r.id, samples);
  if (!charges) return;
  if constexpr (requires { r.sampling; }) {
    if (auto fault = size_fault(r.sampling)) return conversation.error(r.id, ErrorCode::bad_request, *fault);
    if (r.n != samples) {
      return conversation.error(
          r.id, ErrorCode::bad_request,
          "n is " + std::to_string(r.n) + "; allowed is 1 to " + std::to_string(most_samples) + " (limits.samples)");
    }
  }
  CompletionRequest request;
  if (!conversation.find_namespace(r.id, r.namespace_, request.name_space)) return;
  request.kind = kind;
  request.priority = r.priority == client::Priority::batch ? serve::Priority::batch : serve::Priority::interactive;
  request.deadline_ms = r.deadline_ms;
  request.samples = samples;
  if constexpr (requires { r.sampling; }) {
    request.sampling = std::move(r.sampling);
    request.continues_text = std::is_same_v<Request, client::Chat>;
  } else {
    request.score = true;
    request.score_top = r.top;
  }
  start(conversation, std::move(request), std::move(r), std::move(*charges));
}

}  // namespace

void complete(Conversation& conversation, client::Generate&& r) { complete_as(conversation, std::move(r), "generate"); }
void complete(Conversation& conversation, client::Chat&& r) { complete_as(conversation, std::move(r), "chat"); }
void complete(Conversation& conversation, client::Score&& r) { complete_as(conversation, std::move(r), "score"); }

/// A completion of which nobody sees the one token that it draws.
void warm(Conversation& conversation, client::Cache&& r, Charges charges, uint64_t name_space) {
  if (r.text.empty() == r.messages.empty())
    return conversation.error(r.id, ErrorCode::bad_request, "cache: warm: give a text or messages");
  CompletionRequest request;
  request.kind = "warm";
  request.warm = true;
  request.pin = r.pinned;
  request.name_space = name_space;
  request.sampling.temperature = 0;
  request.sampling.max_tokens = 1;
  start(conversation, std::move(request), std::move(r), std::move(charges));
}

}  // namespace ellm::daemon
