// See page_store.h. Children of a page are neighbours in the order by text, so the longest common beginning is found beside
// the place where the searched text would stand.
#include "shm/page_store.h"

#include <algorithm>
#include <bit>
#include <cassert>
#include <iterator>

#include "shm/page_record.h"

namespace ellm::shm {
namespace {

constexpr uint32_t kLeastBuckets = 1 << 8, kMostBuckets = 1 << 17;   // of keys of pages given up

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
  const uint64_t use_a = store->kv_.record(store->id_of(a)).last_use, use_b = store->kv_.record(store->id_of(b)).last_use;
  return use_a != use_b ? use_a < use_b : &a < &b;
}

PageStore::PageStore(KvPages& kv)
    : kv_(kv),
      nodes_(kv.total_pages()),
      by_text_(TextOrder{this}),
      by_age_(AgeOrder{this}),
      evicted_(std::bit_ceil(std::clamp(kv.total_pages(), kLeastBuckets, kMostBuckets))) {
  recover();
}

PageStore::~PageStore() {
  by_age_.clear();
  by_text_.clear();
}

/// From the root on, children before theirs. Ages are numbered anew: what a damaged record says must not stop the clock.
void PageStore::recover() {
  std::vector<PageId> pages, reached;
  for (PageId page = 0; page < kv_.total_pages(); ++page) {
    if (kv_.record(page).state.load(std::memory_order_acquire) == PageState::sealed) pages.push_back(page);
  }
  const auto parent_key = [this](PageId page) {
    const PageRecordData& record = kv_.record(page);
    return PageKey{record.parent_key[0], record.parent_key[1]};
  };
  std::ranges::sort(pages, {}, parent_key);
  const auto reach_children = [&](PageId parent) {
    for (const PageId page : std::ranges::equal_range(pages, key(parent), {}, parent_key)) {
      if (parent != kNoPage && (kv_.record(parent).n_tokens != kPageTokens ||
                                kv_.record(parent).name_space != kv_.record(page).name_space))
        continue;
      if (link(page, parent)) reached.push_back(page);
    }
  };
  reach_children(kNoPage);
  for (size_t i = 0; i < reached.size(); ++i) reach_children(reached[i]);
  for (const PageId page : pages) {
    if (!nodes_[page].by_text.is_linked()) kv_.release(page);
  }
  std::ranges::sort(reached, {}, [this](PageId page) { return kv_.record(page).last_use; });
  for (const PageId page : reached) {
    nodes_[page].checked = false;
    kv_.touch(page, ++clock_);
  }
  for (const PageId page : reached) update_age(nodes_[page]);
}

/// A sealed page becomes a child of `parent`. False: that has one with these tokens.
bool PageStore::link(PageId page, PageId parent) {
  nodes_[page].parent = parent;
  if (!by_text_.insert(nodes_[page]).second) return false;
  if (parent != kNoPage) ++nodes_[parent].children;
  return true;
}

/// False: the page was damaged, and is free with all behind it.
bool PageStore::check(PageId page) {
  Node& node = nodes_[page];
  if (!node.checked && !kv_.intact(page)) {
    drop_branch(page);
    return false;
  }
  node.checked = true;
  return true;
}

/// A damaged page and all behind it; none of them is in use, since none was checked.
void PageStore::drop_branch(PageId page) {
  PageId leaf = page;
  for (;;) {
    if (nodes_[leaf].children != 0) {   // the first of them
      leaf = id_of(*by_text_.lower_bound(Text{leaf, 0, {}}, TextOrder{this}));
      continue;
    }
    const PageId parent = nodes_[leaf].parent;
    drop(leaf);
    ++damaged_;
    if (leaf == page) return;
    leaf = parent;
  }
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

/// Puts a page among those that may be given up, or takes it out. last_use must not change while it is there.
void PageStore::update_age(Node& node) {
  const bool may_go = node.by_text.is_linked() && node.uses == 0 && node.children == 0;
  if (may_go == node.by_age.is_linked()) return;
  if (may_go)
    by_age_.insert(node);
  else
    by_age_.erase(by_age_.iterator_to(node));
}

void PageStore::acquire(PageId page) {
  Node& node = nodes_[page];
  assert(node.by_text.is_linked());
  if (node.uses++ == 0) ++used_;
  update_age(node);
  kv_.touch(page, ++clock_);
}

void PageStore::release(PageId page) {
  Node& node = nodes_[page];
  assert(node.uses != 0);
  const bool sealed = node.by_text.is_linked();
  if (sealed) kv_.touch(page, ++clock_);
  if (--node.uses != 0) return;
  --used_;
  if (sealed)
    update_age(node);
  else
    kv_.release(page);
}

/// A cached page without children becomes free.
void PageStore::drop(PageId page) {
  Node& node = nodes_[page];
  assert(node.uses == 0 && node.children == 0);
  if (node.by_age.is_linked()) by_age_.erase(by_age_.iterator_to(node));
  by_text_.erase(by_text_.iterator_to(node));
  if (node.parent != kNoPage) {
    --nodes_[node.parent].children;
    update_age(nodes_[node.parent]);
  }
  kv_.release(page);
}

bool PageStore::evict_one() {
  if (by_age_.empty()) return false;
  const PageId page = id_of(*by_age_.begin());
  const uint64_t gone = key(page).low;
  Bucket& bucket = evicted_[gone & (evicted_.size() - 1)];
  std::copy_backward(bucket.begin(), bucket.end() - 1, bucket.end());
  bucket[0] = gone;
  drop(page);
  return true;
}

bool PageStore::was_evicted(const PageKey& key) const {
  const Bucket& bucket = evicted_[key.low & (evicted_.size() - 1)];
  return std::find(bucket.begin(), bucket.end(), key.low) != bucket.end();
}

std::optional<PageId> PageStore::allocate() {
  auto page = kv_.allocate();
  if (!page && evict_one()) page = kv_.allocate();   // has memory: it was used
  if (!page) return std::nullopt;
  nodes_[*page].parent = kNoPage;
  nodes_[*page].uses = 1;
  ++used_;
  return page;
}

PageId PageStore::seal(PageId page, PageId parent, uint64_t name_space, std::span<const uint32_t> tokens) {
  Node& node = nodes_[page];
  assert(node.uses == 1 && !node.by_text.is_linked());
  assert(parent == kNoPage || (in_use(parent) && kv_.record(parent).n_tokens == kPageTokens));
  const Hit like = find(parent, name_space, tokens);
  if (like.tokens == tokens.size()) {
    acquire(like.page);
    release(page);
    return like.page;
  }
  if (like.page != kNoPage && like.tokens == kv_.record(like.page).n_tokens && !in_use(like.page)) drop(like.page);
  kv_.seal(page, name_space, key(parent), tokens, ++clock_);
  node.checked = true;
  link(page, parent);
  return page;
}

}  // namespace ellm::shm
