// ellm.h: what the daemon keeps of prefixes.
#include "client/c_abi/handles.h"

using namespace ellm::client;
using namespace ellm::client::c_abi;

namespace {

Cache request_of(CacheAction action, const char* model, const char* name_space, const char* whose = nullptr) {
  Cache request;
  request.action = action;
  request.model = c_abi::name_of(model), request.namespace_ = c_abi::name_of(name_space);
  request.whose = c_abi::name_of(whose);
  return request;
}

int change(ellm_client* client, CacheAction action, const char* name_space, const char* prefix, ellm_reply** out) {
  return ask(client, out, [&](Client& c) {
    require(prefix != nullptr, "the prefix is NULL");
    Cache request = request_of(action, nullptr, name_space);
    request.prefix = prefix;
    ellm_reply reply;
    reply.cache = c.cache(std::move(request));
    return reply;
  });
}

/// An element of one of the lists of a reply about the cache; throws BadArgument.
template <class T>
const T& element(const ellm_reply* reply, std::vector<T> CacheReply::* list, size_t index) {
  require(reply && reply->cache && index < ((*reply->cache).*list).size(), "the reply has no such element");
  return ((*reply->cache).*list)[index];
}

template <class T>
size_t count_of(const ellm_reply* reply, std::vector<T> CacheReply::* list) {
  return reply && reply->cache ? ((*reply->cache).*list).size() : 0;
}

}  // namespace

int ellm_cache_list(ellm_client* client, const char* model, const char* name_space, ellm_reply** out) {
  return ask(client, out, [&](Client& c) {
    ellm_reply reply;
    reply.cache.emplace().prefixes = c.cached_prefixes(c_abi::name_of(model), c_abi::name_of(name_space));
    return reply;
  });
}

int ellm_cache_stat(ellm_client* client, const char* model, const char* whose, ellm_reply** out) {
  return ask(client, out, [&](Client& c) {
    ellm_reply reply;
    reply.cache = c.cache(request_of(CacheAction::stat, model, nullptr, whose));
    return reply;
  });
}

int ellm_cache_pin(ellm_client* client, const char* name_space, const char* prefix, ellm_reply** out) {
  return change(client, CacheAction::pin, name_space, prefix, out);
}
int ellm_cache_unpin(ellm_client* client, const char* name_space, const char* prefix, ellm_reply** out) {
  return change(client, CacheAction::unpin, name_space, prefix, out);
}

int ellm_cache_flush(ellm_client* client, const char* model, const char* name_space, const char* whose, int pinned,
                     ellm_reply** out) {
  return ask(client, out, [&](Client& c) {
    Cache request = request_of(CacheAction::flush, model, name_space, whose);
    request.pinned = pinned != 0;
    ellm_reply reply;
    reply.cache = c.cache(std::move(request));
    return reply;
  });
}

int ellm_cache_warm(ellm_client* client, const ellm_request* text, int pin, ellm_reply** out) {
  return ask(client, out, [&](Client& c) {
    require(text != nullptr, "the request is NULL");
    require(!text->use_tokens, "token ids cannot be computed in advance, only texts");
    Cache request = request_of(CacheAction::warm, text->model.c_str(), text->name_space.c_str());
    request.pinned = pin != 0;
    request.messages = text->messages;
    if (text->messages.empty()) {
      request.text = text->prompt;
    } else {
      request.tools = text->tools;
      request.variables = text->variables.empty() ? "{\"add_generation_prompt\": false}" : text->variables;
    }
    ellm_reply reply;
    reply.cache = c.cache(std::move(request));
    return reply;
  });
}

size_t ellm_reply_prefix_count(const ellm_reply* reply) { return count_of(reply, &CacheReply::prefixes); }

int ellm_reply_prefix(const ellm_reply* reply, size_t index, ellm_prefix_info* info) {
  return guarded([&] {
    const CachedPrefix& p = element(reply, &CacheReply::prefixes, index);
    ellm_prefix_info out{};
    out.model = p.model.c_str(), out.name_space = p.namespace_.c_str(), out.prefix = p.prefix.c_str();
    out.head = p.head.c_str(), out.tail = p.tail.c_str();
    out.bytes = p.bytes, out.age_s = p.age_s, out.tokens = p.tokens;
    out.pinned = p.pinned, out.in_use = p.in_use;
    copy_out(out, info);
  });
}

size_t ellm_reply_cache_model_count(const ellm_reply* reply) { return count_of(reply, &CacheReply::models); }

int ellm_reply_cache_model(const ellm_reply* reply, size_t index, ellm_cache_model_info* info) {
  return guarded([&] {
    const CacheModel& m = element(reply, &CacheReply::models, index);
    ellm_cache_model_info out{};
    out.model = m.model.c_str(), out.page_bytes = m.page_bytes, out.page_tokens = m.page_tokens;
    out.pages = m.pages, out.free_pages = m.free_pages, out.cached_pages = m.cached_pages;
    out.pinned_pages = m.pinned_pages, out.most_pinned_pages = m.most_pinned_pages;
    out.damaged_pages = m.damaged_pages;
    copy_out(out, info);
  });
}

size_t ellm_reply_cache_owner_count(const ellm_reply* reply) { return count_of(reply, &CacheReply::owners); }

int ellm_reply_cache_owner(const ellm_reply* reply, size_t index, ellm_cache_owner_info* info) {
  return guarded([&] {
    const CacheOwner& o = element(reply, &CacheReply::owners, index);
    ellm_cache_owner_info out{};
    out.model = o.model.c_str(), out.owner = o.owner.c_str(), out.bytes = o.bytes;
    out.cached_tokens = o.cached_tokens, out.computed_tokens = o.computed_tokens, out.evicted_pages = o.evicted_pages;
    out.pages = o.pages, out.pinned_pages = o.pinned_pages, out.used_pages = o.used_pages;
    out.share_pages = o.share_pages;
    copy_out(out, info);
  });
}

int ellm_reply_cache_change(const ellm_reply* reply, ellm_cache_change_info* info) {
  return guarded([&] {
    require(reply && reply->cache, "the reply is none about the cache");
    const CacheReply& r = *reply->cache;
    ellm_cache_change_info out{};
    out.flushed_pages = r.pages, out.flushed_bytes = r.bytes;
    out.prompt_tokens = r.usage.prompt_tokens, out.cached_tokens = r.usage.cached_tokens;
    copy_out(out, info);
  });
}
