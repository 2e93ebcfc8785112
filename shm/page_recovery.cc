// What an earlier process left: which of its pages are kept, and what becomes of those that turn out to be damaged.
// Part of page_store.h.
#include <algorithm>

#include "shm/page_record.h"
#include "shm/page_store.h"

namespace ellm::shm {

/// From the root on, children before theirs. Ages are numbered anew: what a damaged record says must not
/// stop the clock.
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
      if (parent != kNoPage &&
          (kv_.record(parent).n_tokens != kPageTokens || kv_.record(parent).name_space != kv_.record(page).name_space))
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
  const uint64_t now = shares_.now();
  for (const PageId page : reached) {
    nodes_[page].checked = false;
    last_use_ = std::max(last_use_ + 1, std::min(kv_.record(page).last_use, now));
    kv_.touch(page, last_use_);
    own(page, shares_.open(kv_.record(page).name_space));
  }
  for (const PageId page : reached) update(nodes_[page]);
  for (const PageId page : reached) {
    if (!is_pinned(page)) continue;
    kv_.set_pinned(page, false);
    pin(page, total_pages());  // if there is room for it still: what all may pin could have changed
  }
  drop_shorter_siblings();
}

/// A crash may leave a page beside the longer one that was to take its place.
void PageStore::drop_shorter_siblings() {
  for (auto next = by_text_.begin(); next != by_text_.end();) {
    const auto shorter = next++;
    if (next == by_text_.end() || shorter->uses != 0) continue;
    const Text a = text_of(*shorter), b = text_of(*next);
    if (a.parent != b.parent || a.name_space != b.name_space || a.tokens.size() >= b.tokens.size()) continue;
    if (!std::equal(a.tokens.begin(), a.tokens.end(), b.tokens.begin())) continue;
    const PageId page = id_of(*shorter);
    if (is_pinned(page) && !is_pinned(id_of(*next))) set_pin(id_of(*next), true);
    drop(page);
  }
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
    if (nodes_[leaf].children != 0) {  // the first of them
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

}  // namespace ellm::shm
