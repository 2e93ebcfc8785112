// See cache_query.h.
#include "daemon/cache_query.h"

#include <algorithm>
#include <charconv>
#include <cstdio>

#include "daemon/chat_prompt.h"
#include "shm/page_record.h"

namespace ellm::daemon {
namespace {

using client::CacheAction;
using client::ErrorCode;
using shm::kNoPage;
using shm::PageId;
using shm::PageStore;

constexpr size_t kMostListed = 64;         // prefixes of one reply
constexpr PageId kMostLookedAt = 1 << 15;  // pages for one reply: some milliseconds of the engine's time
constexpr size_t kLeastDigits = 8, kMostDigits = 16;

std::string digits_of(const shm::PageKey& key) {
  char text[kMostDigits + 1];
  std::snprintf(text, sizeof text, "%016lx", static_cast<unsigned long>(key.low));
  return text;
}

/// The first digits of a key's name.
struct KeyStart {
  uint64_t value = 0;
  uint32_t shift = 0;
  explicit KeyStart(const std::string& digits) : shift(static_cast<uint32_t>(4 * (kMostDigits - digits.size()))) {
    std::from_chars(digits.data(), digits.data() + digits.size(), value, 16);
  }
  bool fits(const shm::PageKey& key) const { return key.low >> shift == value; }
};

/// What may be listed: ends of texts, and what was pinned before it was continued.
bool is_end(const PageStore& store, PageId page) {
  return store.is_leaf(page) || (store.is_stored(page) && store.is_pinned(page));
}

std::vector<uint32_t> tokens_of(const PageStore& store, PageId page) {
  const auto& record = store.record(page);
  return {record.tokens, record.tokens + record.n_tokens};
}

}  // namespace

std::string cache_fault(const client::Cache& r) {
  const bool names_prefix = r.action == CacheAction::pin || r.action == CacheAction::unpin;
  const auto is_digit = [](char c) { return (c >= '0' && c <= '9') || (c >= 'a' && c <= 'f'); };
  if (names_prefix &&
      (r.prefix.size() < kLeastDigits || r.prefix.size() > kMostDigits || !std::ranges::all_of(r.prefix, is_digit)))
    return "prefix is no name of a cached prefix: 8 to 16 hexadecimal digits, as `ellm cache ls` prints";
  if (r.action == CacheAction::list && r.model.empty()) return "list: which model?";
  return {};
}

Failure pin_failure(PageStore::Pin outcome) {
  switch (outcome) {
    case PageStore::Pin::beyond_all:
      return {
          ErrorCode::too_large,
          "not pinned: all pinned prefixes together would take more of the cache than they may (kv.pinned_percent, and "
          "one full context stays free: kv.memory); `ellm cache stat` shows both"};
    case PageStore::Pin::beyond_share:
      return {ErrorCode::too_large,
              "not pinned: your pinned prefixes would take more of your share of the cache than they may "
              "(kv.pinned_percent); `ellm cache ls` shows them, `ellm cache unpin` frees one"};
    case PageStore::Pin::no_room_now:
      return {ErrorCode::busy, "not pinned: running requests need that room; try again later", 1000};
    case PageStore::Pin::done: break;
  }
  return {};
}

// ---- engine thread --------------------------------------------------------------------------------------------------

void CacheQuery::run(const std::string& model, const serve::Servable& servable, serve::PrefixCache& cache) {
  visited_ = true;
  PageStore& store = cache.pages();
  switch (request_.action) {
    case CacheAction::list: return list(model, servable, store);
    case CacheAction::stat: return stat(model, store);
    case CacheAction::pin:
    case CacheAction::unpin: return change_pin(model, servable, store);
    case CacheAction::flush:
      if (servable.disk) servable.disk->erase(scope_.everybody ? std::nullopt : std::optional(scope_.name_space));
      return flush(store);
    case CacheAction::warm: break;
  }
}

CacheQuery::Row CacheQuery::row_of(const std::string& model, const serve::Servable& servable, const PageStore& store,
                                   PageId page) const {
  Row row;
  row.model = servable.model;
  row.tail = tokens_of(store, page);
  PageId first = page;
  uint32_t pages = 1;
  for (; store.parent(first) != kNoPage; first = store.parent(first)) ++pages;
  if (first != page) row.head = tokens_of(store, first);
  client::CachedPrefix& p = row.prefix;
  p.model = model;
  p.namespace_ = request_.namespace_;
  p.prefix = digits_of(store.key(page));
  p.tokens = (pages - 1) * shm::kPageTokens + store.record(page).n_tokens;
  p.bytes = pages * store.page_bytes();
  p.pinned = store.is_pinned(page);
  p.in_use = store.in_use(page);
  const uint64_t now = store.shares().now(), used = store.record(page).last_use;
  p.age_s = static_cast<double>(now - std::min(now, used)) / 1e9;
  return row;
}

void CacheQuery::list(const std::string& model, const serve::Servable& servable, const PageStore& store) {
  PageId page = static_cast<PageId>(std::min<uint64_t>(request_.cursor, store.total_pages()));
  const PageId end = page + std::min(kMostLookedAt, store.total_pages() - page);
  for (; page < end && rows_.size() < kMostListed; ++page) {
    if (is_end(store, page) && store.record(page).name_space == scope_.name_space)
      rows_.push_back(row_of(model, servable, store, page));
  }
  next_ = page < store.total_pages() ? page : 0;
}

void CacheQuery::stat(const std::string& model, const PageStore& store) {
  client::CacheModel m;
  m.model = model;
  m.page_tokens = shm::kPageTokens;
  m.page_bytes = store.page_bytes();
  m.pages = store.total_pages();
  m.free_pages = store.free_pages();
  m.cached_pages = store.cached_pages();
  m.pinned_pages = store.pinned_pages();
  m.most_pinned_pages = std::min(store.limits().most_pinned, store.total_pages());
  m.damaged_pages = store.damaged_pages();
  models_.push_back(std::move(m));
  store.shares().for_each([&](const shm::PageShares::Account& a) {
    if (!scope_.everybody && std::ranges::find(scope_.visible, a.name_space) == scope_.visible.end()) return;
    owners_.push_back({{model, "", a.pages, a.pinned, a.held - std::min(a.held, a.pinned), store.shares().share(a),
                        a.pages * store.page_bytes(), a.cached_tokens, a.computed_tokens, a.evicted_pages},
                       a.name_space});
  });
}

void CacheQuery::change_pin(const std::string& model, const serve::Servable& servable, PageStore& store) {
  const KeyStart start(request_.prefix);
  PageId found = kNoPage;
  for (PageId page = 0; page < store.total_pages(); ++page) {
    if (!is_end(store, page) || store.record(page).name_space != scope_.name_space || !start.fits(store.key(page)))
      continue;
    ambiguous_ = ambiguous_ || found != kNoPage || !rows_.empty();
    found = page;
  }
  if (found == kNoPage || ambiguous_) return;
  if (request_.action == CacheAction::unpin) {
    store.unpin(found);
  } else if (const auto outcome = store.pin(found); outcome != PageStore::Pin::done) {
    refused_ = outcome;
  }
  rows_.push_back(row_of(model, servable, store, found));
}

void CacheQuery::flush(PageStore& store) {
  uint32_t pages = 0;
  const auto one = [&](uint64_t name_space) { pages += store.flush(name_space, request_.pinned); };
  if (scope_.everybody) {
    store.shares().for_each([&](const shm::PageShares::Account& account) { one(account.name_space); });
  } else {
    one(scope_.name_space);
  }
  pages_ += pages;
  bytes_ += pages * store.page_bytes();
}

// ---- preparation pool -----------------------------------------------------------------------------------------------

client::CacheReply CacheQuery::reply(const Namespaces& namespaces) const {
  if (!visited_ && !request_.model.empty())
    throw PromptError(ErrorCode::no_such_model,
                      "model '" + request_.model + "' is not loaded: nothing of it is cached here");
  const bool names_prefix = request_.action == CacheAction::pin || request_.action == CacheAction::unpin;
  if (ambiguous_)
    throw PromptError(ErrorCode::bad_request,
                      "more than one cached prefix begins with '" + request_.prefix + "': give more digits");
  if (names_prefix && rows_.empty())
    throw PromptError(ErrorCode::bad_request,
                      "there is no cached prefix '" + request_.prefix + "' (any more): see `ellm cache ls`");
  if (refused_) {
    const Failure failure = pin_failure(*refused_);
    throw PromptError(failure.code, failure.message);
  }
  client::CacheReply reply;
  reply.id = request_.id;
  reply.next = next_;
  for (const Row& row : rows_) {
    client::CachedPrefix prefix = row.prefix;
    const auto text = [&](const std::vector<uint32_t>& tokens) {
      return row.model && !tokens.empty() ? row.model->tokenizer()->decode(tokens, true) : std::string();
    };
    prefix.head = text(row.head.empty() ? row.tail : row.head);
    if (!row.head.empty()) prefix.tail = text(row.tail);
    reply.prefixes.push_back(std::move(prefix));
  }
  reply.models = models_;
  for (const Owner& owner : owners_) {
    reply.owners.push_back(owner.owner);
    reply.owners.back().owner = namespaces.describe(owner.name_space);
  }
  reply.pages = pages_;
  reply.bytes = bytes_;
  return reply;
}

}  // namespace ellm::daemon
