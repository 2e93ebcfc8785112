// See page_store.h. Children of a page are neighbours in the order by text, so the longest common beginning is found
// beside the place where the searched text would stand.
#include "shm/page_store.h"

#include <algorithm>
#include <bit>
#include <cassert>
#include <iterator>

#include "shm/page_record.h"

namespace ellm::shm {
namespace {

constexpr uint32_t kLeastBuckets = 1 << 8, kMostBuckets = 1 << 17;  // of keys of pages given up

uint32_t common_tokens(std::span<const uint32_t> a, std::span<const uint32_t> b) {
  return static_cast<uint32_t>(std::mismatch(a.begin(), a.end(), b.begin(), b.end()).first - a.begin());
}

}  // namespace

bool PageStore::TextOrder::less(const Text& a, const Text& b) {
  if (a.parent != b.parent) return a.parent < b.parent;
  if (a.name_space != b.name_space) return a.name_space < b.name_space;
  return std::lexicographical_compare(a.tokens.begin(), a.tokens.end(), b.tokens.begin(), b.tokens.end());
}

bool PageStore::AgeOrder::operator()(const Node& a, const Node& b) const {
  if (a.owner != b.owner) return a.owner < b.owner;
  const uint64_t use_a = store->kv_.record(store->id_of(a)).last_use,
                 use_b = store->kv_.record(store->id_of(b)).last_use;
  return use_a != use_b ? use_a < use_b : &a < &b;
}

PageStore::PageStore(KvPages& kv, const ShareOptions& options)
    : kv_(kv), shares_(kv.total_pages(), options), nodes_(kv.total_pages()), by_text_(TextOrder{this}),
      by_age_(AgeOrder{this}), evicted_(std::bit_ceil(std::clamp(kv.total_pages(), kLeastBuckets, kMostBuckets))) {
  recover();
}

PageStore::~PageStore() {
  by_age_.clear();
  by_text_.clear();
}

/// A sealed page becomes a child of `parent`. False: that has one with these tokens.
bool PageStore::link(PageId page, PageId parent) {
  nodes_[page].parent = parent;
  if (!by_text_.insert(nodes_[page]).second) return false;
  if (parent != kNoPage) ++nodes_[parent].children;
  return true;
}

PageStore::Text PageStore::text_of(const Node& node) const {
  const PageRecordData& record = kv_.record(id_of(node));
  return {node.parent, record.name_space, std::span(record.tokens, record.n_tokens)};
}

PageKey PageStore::key(PageId page) const {
  if (page == kNoPage) return {};
  const PageRecordData& record = kv_.record(page);
  return {record.key[0], record.key[1]};
}

PageStore::Hit PageStore::find(PageId parent, uint64_t name_space, std::span<const uint32_t> tokens) {
  for (;;) {
    const Hit hit = look_up(parent, name_space, tokens);
    if (hit.page == kNoPage || check(hit.page)) return hit;
  }
}

PageStore::Hit PageStore::look_up(PageId parent, uint64_t name_space, std::span<const uint32_t> tokens) const {
  const Text wanted{parent, name_space, tokens.first(std::min<size_t>(tokens.size(), kPageTokens))};
  Hit best;
  const auto consider = [&](const Node& node) {
    const Text text = text_of(node);
    if (text.parent != parent || text.name_space != name_space) return;
    const uint32_t common = common_tokens(text.tokens, wanted.tokens);
    if (common > best.tokens) best = {id_of(node), common};
  };
  const auto next = by_text_.lower_bound(wanted, TextOrder{this});
  if (next != by_text_.end()) consider(*next);
  if (next != by_text_.begin()) consider(*std::prev(next));
  return best;
}

uint64_t PageStore::next_use() { return last_use_ = std::max(last_use_ + 1, shares_.now()); }

// ---- who has it ----------------------------------------------------------------------------------------------------------

/// A page that is free no more.
void PageStore::own(PageId page, PageShares::Account& account) {
  nodes_[page].owner = shares_.number(account);
  shares_.change(account, [](auto& a) { ++a.pages; });
}

/// The same backwards: a page that nobody holds becomes free.
void PageStore::give_back(PageId page) {
  shares_.change(owner(page), [](auto& a) { --a.pages; });
  kv_.release(page);
}

/// Puts a page among those that are held or those that may be given up, after any other change of it. last_use must not
/// change while it is among the latter.
void PageStore::update(Node& node) {
  const bool held = node.uses != 0 || node.pins != 0;
  const bool may_go = node.by_text.is_linked() && !held && node.children == 0;
  const bool could_go = node.by_age.is_linked();
  if (held == node.held && may_go == could_go) return;
  held_ += uint32_t{held} - uint32_t{node.held};
  shares_.change(shares_.at(node.owner), [&](auto& account) {
    account.held += uint32_t{held} - uint32_t{node.held};
    account.may_go += uint32_t{may_go} - uint32_t{could_go};
  });
  node.held = held;
  if (may_go && !could_go) by_age_.insert(node);
  if (!may_go && could_go) by_age_.erase(by_age_.iterator_to(node));
}

void PageStore::acquire(PageId page) {
  Node& node = nodes_[page];
  assert(node.by_text.is_linked());
  if (node.uses++ == 0) ++used_;
  update(node);
  kv_.touch(page, next_use());
}

void PageStore::release(PageId page) {
  Node& node = nodes_[page];
  assert(node.uses != 0);
  const bool sealed = node.by_text.is_linked();
  if (sealed) kv_.touch(page, next_use());
  if (--node.uses != 0) return;
  --used_;
  update(node);
  if (!sealed) give_back(page);
}

// ---- what is set aside ---------------------------------------------------------------------------------------------------

uint32_t PageStore::lacking(uint32_t need) const {
  const uint64_t sum = uint64_t{held_} + reserved_ + need + (lacks_memory_ ? free_pages() : 0);
  return static_cast<uint32_t>(sum - std::min<uint64_t>(sum, total_pages()));
}

void PageStore::begin_sequence(uint64_t name_space, uint32_t reserved) {
  reserved_ += reserved;
  shares_.change(shares_.open(name_space), [&](auto& account) {
    account.reserved += reserved;
    ++account.sequences;
  });
}

void PageStore::take_reserved(uint64_t name_space, uint32_t pages) {
  reserved_ -= pages;
  shares_.open(name_space).reserved -= pages;  // which places no account elsewhere
}

void PageStore::reserve_again(uint64_t name_space, uint32_t pages) {
  reserved_ += pages;
  shares_.open(name_space).reserved += pages;
}

void PageStore::end_sequence(uint64_t name_space, uint32_t reserved, uint64_t cached, uint64_t computed) {
  reserved_ -= reserved;
  shares_.change(shares_.enter(name_space), [&](auto& account) {
    account.reserved -= reserved;
    --account.sequences;
    account.cached_tokens += cached;
    account.computed_tokens += computed;
  });
}

// ---- pins ------------------------------------------------------------------------------------------------------------------

bool PageStore::is_pinned(PageId page) const { return kv_.record(page).pinned != 0; }

/// The page's own pin, and what it means for the pages before it.
void PageStore::set_pin(PageId page, bool pinned) {
  kv_.set_pinned(page, pinned);
  for (; page != kNoPage; page = nodes_[page].parent) {
    Node& node = nodes_[page];
    node.pins += pinned ? 1 : ~0u;
    if (node.pins != (pinned ? 1u : 0u)) return;  // another pin holds it, and with it those before it
    pinned_ += pinned ? 1 : ~0u;
    shares_.at(node.owner).pinned += pinned ? 1 : ~0u;
    update(node);
  }
}

PageStore::Pin PageStore::pin(PageId page) {
  const auto& account = shares_.enter(owner(page).name_space);
  return pin(page, uint64_t{shares_.share(account)} * limits().pinned_percent / 100);
}

/// `most`: pages that its namespace may pin.
PageStore::Pin PageStore::pin(PageId page, uint64_t most) {
  assert(nodes_[page].by_text.is_linked());
  if (is_pinned(page)) return Pin::done;
  uint32_t more = 0, to_hold = 0;  // pages before it, and itself, that no pin holds; that nothing holds
  for (PageId at = page; at != kNoPage && nodes_[at].pins == 0; at = nodes_[at].parent) {
    ++more;
    to_hold += nodes_[at].held ? 0 : 1;
  }
  if (uint64_t{pinned_} + more > limits().most_pinned) return Pin::beyond_all;
  if (uint64_t{owner(page).pinned} + more > most) return Pin::beyond_share;
  if (uint64_t{held_} + reserved_ + to_hold > total_pages()) return Pin::no_room_now;
  set_pin(page, true);
  return Pin::done;
}

void PageStore::unpin(PageId page) {
  if (is_pinned(page)) set_pin(page, false);
}

// ---- pages come and go -----------------------------------------------------------------------------------------------------

/// A page without children that nobody uses becomes free.
void PageStore::drop(PageId page) {
  Node& node = nodes_[page];
  assert(node.uses == 0 && node.children == 0);
  unpin(page);
  by_text_.erase(by_text_.iterator_to(node));
  update(node);
  if (node.parent != kNoPage) {
    --nodes_[node.parent].children;
    update(nodes_[node.parent]);
  }
  give_back(page);
}

bool PageStore::evict_one() {
  auto* giver = shares_.giver();
  if (giver == nullptr) return false;
  const PageId page = id_of(*by_age_.lower_bound(shares_.number(*giver), AgeOrder{this}));
  const uint64_t gone = key(page).low;
  Bucket& bucket = evicted_[gone & (evicted_.size() - 1)];
  std::copy_backward(bucket.begin(), bucket.end() - 1, bucket.end());
  bucket[0] = gone;
  ++giver->evicted_pages;
  drop(page);
  return true;
}

uint32_t PageStore::flush(uint64_t name_space, bool pinned) {
  const auto* account = shares_.find(name_space);
  if (account == nullptr) return 0;
  const uint32_t before = free_pages(), owner = shares_.number(*account);
  for (PageId page = 0; pinned && page < total_pages(); ++page) {
    if (nodes_[page].owner == owner && nodes_[page].by_text.is_linked()) unpin(page);
  }
  while (account->may_go != 0) drop(id_of(*by_age_.lower_bound(owner, AgeOrder{this})));
  return free_pages() - before;
}

bool PageStore::was_evicted(const PageKey& key) const {
  const Bucket& bucket = evicted_[key.low & (evicted_.size() - 1)];
  return std::find(bucket.begin(), bucket.end(), key.low) != bucket.end();
}

std::optional<PageId> PageStore::allocate(uint64_t name_space) {
  auto& account = shares_.open(name_space);
  shares_.change(account, [](auto& a) { ++a.pages; });  // that makes room for it counts as having it
  auto page = kv_.allocate();
  if (!page && evict_one()) page = kv_.allocate();  // has memory: it was used
  shares_.change(account, [](auto& a) { --a.pages; });
  if (!page) {
    lacks_memory_ = true;
    return std::nullopt;
  }
  nodes_[*page].parent = kNoPage;
  nodes_[*page].uses = 1;
  ++used_;
  own(*page, account);
  update(nodes_[*page]);
  return page;
}

PageId PageStore::seal(PageId page, PageId parent, uint64_t name_space, std::span<const uint32_t> tokens,
                       std::optional<uint64_t> checksum) {
  Node& node = nodes_[page];
  assert(node.uses == 1 && !node.by_text.is_linked() && owner(page).name_space == name_space);
  assert(parent == kNoPage || (in_use(parent) && kv_.record(parent).n_tokens == kPageTokens));
  const Hit like = find(parent, name_space, tokens);
  if (like.tokens == tokens.size()) {
    acquire(like.page);
    release(page);
    return like.page;
  }
  const bool replaces = like.page != kNoPage && like.tokens == kv_.record(like.page).n_tokens && !in_use(like.page);
  kv_.seal(page, name_space, key(parent), tokens, next_use(), checksum);
  node.checked = true;
  link(page, parent);
  if (replaces) {
    if (is_pinned(like.page)) set_pin(page, true);  // it holds what was pinned
    drop(like.page);
  }
  return page;
}

}  // namespace ellm::shm
