// See text_requests.h.
#include "daemon/text_requests.h"

#include <memory>
#include <string>
#include <utility>
#include <variant>

#include "daemon/chat_prompt.h"
#include "daemon/one_reply.h"
#include "daemon/validate.h"

namespace ellm::daemon {
namespace {

using client::ErrorCode;

client::TokenizeReply tokenize(const client::Tokenize& r, const format::Tokenizer& tokenizer) {
  client::TokenizeReply reply{r.id, tokenizer.encode(r.text, {r.add_special, r.parse_special}), {}};
  reply.pieces.reserve(reply.tokens.size());
  for (uint32_t token : reply.tokens) reply.pieces.emplace_back(tokenizer.piece(token));
  return reply;
}

client::TextReply detokenize(const client::Detokenize& r, const LoadedModel& loaded) {
  const uint32_t vocabulary = loaded.model->tokenizer()->vocabulary_size();
  for (size_t i = 0; i < r.tokens.size(); ++i) {
    if (r.tokens[i] < vocabulary) continue;
    throw PromptError(ErrorCode::bad_request, "tokens[" + std::to_string(i) + "] is " + std::to_string(r.tokens[i]) +
                                                  "; model '" + loaded.name + "' has a vocabulary of " +
                                                  std::to_string(vocabulary));
  }
  return {r.id, loaded.model->tokenizer()->decode(r.tokens, r.special)};
}

/// A request with one reply that needs a model: `work` makes it, in the pool.
template <class Request, class Work>
void with_model(Conversation& conversation, Request&& r, Work work) {
  auto charges = conversation.admit(r.id);
  if (!charges) return;
  const uint32_t id = r.id;
  const auto job = std::make_shared<OneReply>(conversation.weak_from_this(), id);
  conversation.add(id, job);
  const auto paid = std::make_shared<Paid<Request>>(std::move(r), std::move(*charges));
  const auto self = conversation.shared_from_this();
  conversation.services().registry.resolve(
      paid->message.model, [self, id, job, paid, work](const Registry::Resolved& model) {
        if (job->cancelled()) return;
        if (const auto* failure = std::get_if<Failure>(&model)) return self->finish(id, to_error(id, *failure));
        const auto loaded = std::get<std::shared_ptr<const LoadedModel>>(model);
        const auto reply = [paid, work, loaded]() -> client::Message {
          refuse_fault(text_fault(paid->message));
          return work(paid->message, *loaded);
        };
        reply_from_pool(self, id, job, PreparePool::weight_of(paid->charges.bytes.amount()), reply);
      });
}

}  // namespace

void answer(Conversation& conversation, client::Tokenize&& request) {
  with_model(conversation, std::move(request), [](const client::Tokenize& r, const LoadedModel& loaded) {
    return tokenize(r, *loaded.model->tokenizer());
  });
}

void answer(Conversation& conversation, client::Detokenize&& request) {
  with_model(conversation, std::move(request),
             [](const client::Detokenize& r, const LoadedModel& loaded) { return detokenize(r, loaded); });
}

void answer(Conversation& conversation, client::RenderTemplate&& request) {
  with_model(conversation, std::move(request), [](const client::RenderTemplate& r, const LoadedModel& loaded) {
    return client::TextReply{r.id, render_template(loaded.name, *loaded.model, r.variables)};
  });
}

}  // namespace ellm::daemon
