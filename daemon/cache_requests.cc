// See cache_requests.h.
#include "daemon/cache_requests.h"

#include <charconv>
#include <memory>
#include <optional>
#include <string>
#include <utility>

#include "daemon/cache_query.h"
#include "daemon/completion_requests.h"
#include "daemon/one_reply.h"
#include "daemon/serve/cache_job.h"

namespace ellm::daemon {
namespace {

using client::ErrorCode;

/// Absent: an error was sent.
std::optional<CacheScope> scope_of(Conversation& conversation, const client::Cache& r) {
  std::optional<uint64_t> named;
  if (!conversation.find_namespace(r.id, r.namespace_, named)) return std::nullopt;
  CacheScope scope{named.value_or(shm::namespace_of_uid(conversation.peer().uid)), {}};
  if (named) {
    scope.visible = {*named};
  } else {
    scope.visible = conversation.services().namespaces.of(conversation.peer());
    scope.visible.push_back(scope.name_space);
  }
  if (r.whose.empty()) return scope;
  if (r.action != client::CacheAction::stat && r.action != client::CacheAction::flush) {
    conversation.error(r.id, ErrorCode::bad_request, "whose is for stat and flush");
    return std::nullopt;
  }
  uint32_t uid = 0;
  const auto [end, fault] = std::from_chars(r.whose.data(), r.whose.data() + r.whose.size(), uid);
  const bool is_uid = fault == std::errc() && end == r.whose.data() + r.whose.size();
  if (!is_uid && r.whose != "all") {
    conversation.error(r.id, ErrorCode::bad_request, "whose is neither 'all' nor a uid");
    return std::nullopt;
  }
  if (!conversation.peer().admin && !(is_uid && uid == conversation.peer().uid)) {
    conversation.deny(r.id, "see and flush what others have cached");
    return std::nullopt;
  }
  scope.everybody = !is_uid;
  if (is_uid) scope.name_space = shm::namespace_of_uid(uid), scope.visible = {scope.name_space};
  return scope;
}

}  // namespace

void answer(Conversation& conversation, client::Cache&& request) {
  const uint32_t id = request.id;
  auto charges = conversation.admit(id);
  if (!charges) return;
  if (const std::string fault = cache_fault(request); !fault.empty())
    return conversation.error(id, ErrorCode::bad_request, "cache: " + fault);
  const auto scope = scope_of(conversation, request);
  if (!scope) return;
  if (request.action == client::CacheAction::warm)
    return warm(conversation, std::move(request), std::move(*charges), scope->name_space);
  const auto job = std::make_shared<OneReply>(conversation.weak_from_this(), id);
  conversation.add(id, job);
  const auto query = std::make_shared<CacheQuery>(std::move(request), *scope);
  const auto paid = std::make_shared<Charges>(std::move(*charges));
  auto prepare = [self = conversation.shared_from_this(), id, job, query, paid](const char* why) {
    const auto reply = [self, id, query, paid, why]() -> client::Message {
      if (why != nullptr) return client::Error{id, ErrorCode::busy, why, kRequestRetryMs};
      return query->reply(self->services().namespaces);
    };
    reply_from_pool(self, id, job, PreparePool::Weight::light, reply);
  };
  conversation.services().engine.visit_caches(
      {query->request().model,
       [query](const std::string& name, const serve::Servable& servable, serve::PrefixCache& cache) {
         query->run(name, servable, cache);
       },
       [self = conversation.shared_from_this(), prepare](const char* why) {
         self->services().loop.post([prepare, why] { prepare(why); });
       }});
}

}  // namespace ellm::daemon
