// See prefix_cache.h.
#include "daemon/serve/prefix_cache.h"

#include <algorithm>
#include <utility>

namespace ellm::serve {
namespace {

using shm::kNoPage;
using shm::kPageTokens;
using shm::PageId;

constexpr uint32_t kWorthWaiting = 256;  // tokens to compute, for the list of what is on disk

uint32_t pages_for(uint32_t tokens) { return (tokens + kPageTokens - 1) / kPageTokens; }

/// The tokens of page `index`, as far as there are some.
std::span<const uint32_t> page_tokens(const Sequence& s, uint32_t index) {
  const size_t first = std::min<size_t>(size_t{index} * kPageTokens, s.tokens.size());
  return std::span(s.tokens).subspan(first, std::min<size_t>(kPageTokens, s.tokens.size() - first));
}

PageId parent_of(const Sequence& s, uint32_t index) { return index == 0 ? kNoPage : s.pages[index - 1]; }

/// At least the last token of a prompt is computed: its row gives the first logits.
uint32_t may_share(const Sequence& s) { return s.shareable_tokens() - std::min(s.computed, s.shareable_tokens()); }

/// Returns how many of them count as cached: what was counted before the sequence was preempted does not again.
uint32_t share(Sequence& s, uint32_t tokens) {
  s.computed += tokens;
  s.done.store(s.computed, std::memory_order_relaxed);
  const uint32_t of_prompt = std::min(s.computed, s.prompt_tokens);
  if (of_prompt <= s.counted) return 0;
  const uint32_t cached = std::min(tokens, of_prompt - s.counted);
  s.cached_tokens += cached;
  s.counted = of_prompt;
  return cached;
}

}  // namespace

PrefixCache::PrefixCache(shm::KvPages& kv, const shm::ShareOptions& shares, DiskPages* disk)
    : store_(kv, shares), disk_(disk) {
  for (PageId page = 0; disk_ && page < kv.total_pages();
       ++page) {  // an earlier process may not have come to write them
    if (store_.is_leaf(page)) disk_->ended(page, kv.total_pages());
  }
}

PrefixCache::Lack PrefixCache::lack(const Sequence& s) {
  uint32_t shared = 0, revived = 0;  // pages to share; of these, the ones that nothing holds yet
  PageId page = kNoPage;
  for (; (shared + 1) * kPageTokens <= s.shareable_tokens(); ++shared) {
    const auto hit = store_.find(page, s.name_space, page_tokens(s, shared));
    if (hit.tokens != kPageTokens) break;
    page = hit.page;
    if (!store_.is_held(page)) ++revived;
  }
  const uint32_t need = revived + s.kv_pages() - shared;
  return {store_.lacking(need), store_.beyond_share(s.name_space, need)};
}

bool PrefixCache::admit(Sequence& s) {
  const Lack lacking = lack(s);
  if (lacking.pages != 0 || lacking.of_share != 0) return false;
  const uint32_t wanted = s.kv_pages();
  s.pages.reserve(wanted);
  store_.begin_sequence(s.name_space, wanted);
  s.wanted_pages = wanted;
  share_stored(s);
  if (!s.request.score) copy_own(s);
  look_ahead(s);
  look_elsewhere(s);
  return true;
}

/// Whole pages, at a page border.
void PrefixCache::share_stored(Sequence& s) {
  while (may_share(s) >= kPageTokens) {
    const auto index = static_cast<uint32_t>(s.pages.size());
    const auto hit = store_.find(parent_of(s, index), s.name_space, page_tokens(s, index));
    if (hit.tokens != kPageTokens) return;
    store_.acquire(hit.page);
    s.pages.push_back(hit.page);
    ++s.sealed_pages;
    store_.take_reserved(s.name_space, 1);
    share(s, kPageTokens);
  }
}

/// In a namespace that others use too: what only the user's own has, as it is there, into pages of the named one.
void PrefixCache::copy_own(Sequence& s) {
  const uint64_t own = shm::namespace_of_uid(s.request.uid);
  if (s.name_space == own || s.computed != s.sealed_pages * kPageTokens) return;
  PageId at = kNoPage;
  for (uint32_t index = 0; may_share(s) != 0; ++index) {
    const auto hit = store_.find(at, own, page_tokens(s, index));
    if (index == s.sealed_pages && !copy_page(s, hit)) return;
    if (hit.tokens != kPageTokens) return;
    at = hit.page;
  }
}

/// A page of another namespace, or the beginning of one, as the sequence's next. False: there is more of it here, or no
/// page.
bool PrefixCache::copy_page(Sequence& s, const shm::PageStore::Hit& hit) {
  const uint32_t index = s.sealed_pages, tokens = std::min(hit.tokens, may_share(s));
  if (tokens <= store_.find(parent_of(s, index), s.name_space, page_tokens(s, index)).tokens) return false;
  store_.acquire(hit.page);
  const auto page = store_.allocate(s.name_space);
  if (page) {
    store_.copy(hit.page, *page, tokens);
    s.pages.push_back(*page);
    store_.take_reserved(s.name_space, 1);
    share(s, tokens);
    if (tokens == kPageTokens) {
      s.pages[index] = store_.seal(*page, parent_of(s, index), s.name_space, page_tokens(s, index));
      ++s.sealed_pages;
    }
  }
  store_.release(hit.page);
  return page.has_value();
}

/// How much of the text stands in namespaces that the user may use, and this request does not.
void PrefixCache::look_elsewhere(Sequence& s) {
  for (const uint64_t name_space : s.request.usable_namespaces) {
    if (name_space == s.name_space) continue;
    PageId page = kNoPage;
    uint32_t stored = 0;
    for (uint32_t index = 0;; ++index) {
      const auto hit = store_.find(page, name_space, page_tokens(s, index));
      stored += hit.tokens;
      if (hit.tokens != kPageTokens) break;
      page = hit.page;
    }
    s.namespace_until = std::max(s.namespace_until, stored);
  }
}

/// Why what is not shared now has to be computed, as far as it is known already.
void PrefixCache::look_ahead(Sequence& s) {
  PageId page = parent_of(s, s.sealed_pages);
  uint32_t stored = s.computed;
  for (uint32_t index = s.sealed_pages;; ++index) {
    const auto hit = store_.find(page, s.name_space, page_tokens(s, index));
    stored += hit.tokens;
    if (hit.tokens != kPageTokens) break;
    page = hit.page;
  }
  s.last_is_stored = stored >= s.prompt_tokens;
  if (s.request.score) s.logits_until = stored;
  if (stored % kPageTokens != 0) return;
  shm::PageKey key = store_.key(page);
  uint32_t until = stored;
  for (uint32_t index = stored / kPageTokens; until == index * kPageTokens; ++index) {
    const auto tokens = page_tokens(s, index);
    for (size_t n = tokens.size(); n > 0; --n) {
      const auto gone = shm::page_key(key, s.name_space, tokens.first(n));
      if (!store_.was_evicted(gone)) continue;
      until += static_cast<uint32_t>(n);
      key = gone;
      break;
    }
  }
  if (until > stored) s.evicted_until = until;
}

bool PrefixCache::advance(Sequence& s, const SequenceList& running) noexcept {
  if (s.request.score && may_share(s) == 0) return true;
  if (s.computed != s.pages.size() * kPageTokens) return true;  // within a page
  if (!s.fetch) share_stored(s);                                // what is being read goes where the sequence stands now
  Beginning best = find_beginning(s, running);
  uint32_t wanted = std::min(may_share(s), kPageTokens);
  if (!s.fetch && best.tokens < wanted && best.coming >= wanted) return false;
  if (s.fetch || (disk_ && best.tokens < wanted)) {
    if (waits_for_disk(s)) return false;
    best = find_beginning(s, running);
    wanted = std::min(may_share(s), kPageTokens);
  }
  copy(s, best);
  if (best.tokens < std::max(wanted, 1u)) s.unsealed_until = std::max(s.unsealed_until, best.seen_until);
  return true;
}

/// The longest beginning of the next page that is stored, or in a page that another is filling. What others will have
/// of it soon is worth waiting for only where it is all that can be shared.
PrefixCache::Beginning PrefixCache::find_beginning(const Sequence& s, const SequenceList& running) {
  const auto index = static_cast<uint32_t>(s.pages.size());
  const auto mine = page_tokens(s, index);
  const auto hit = store_.find(parent_of(s, index), s.name_space, mine);
  Beginning best{hit.page, hit.tokens};
  for (const auto& other : running) {
    if (other.get() == &s || other->ended || other->name_space != s.name_space) continue;
    if (other->computed / kPageTokens != index) continue;
    if (other->computed % kPageTokens == 0 && other->planned_rows == 0 && !other->fetch) continue;
    if (parent_of(*other, index) != parent_of(s, index)) continue;
    const auto theirs = page_tokens(*other, index);
    const auto common = static_cast<uint32_t>(
        std::mismatch(mine.begin(), mine.end(), theirs.begin(), theirs.end()).first - mine.begin());
    const uint32_t there = std::min(common, other->computed % kPageTokens);
    if (there > best.tokens) best.page = other->pages[index], best.tokens = there;
    if (!other->request.score) best.coming = std::max(best.coming, common);  // scores come slowly
    best.seen_until = std::max(best.seen_until, s.computed + common);
  }
  return best;
}

/// Into a page of the sequence's own.
void PrefixCache::copy(Sequence& s, const Beginning& from) {
  if (from.tokens != 0) s.last_is_stored = s.computed + from.tokens >= s.prompt_tokens;
  const uint32_t tokens = std::min(from.tokens, may_share(s));
  if (tokens == 0) return;
  const bool unused = !store_.in_use(from.page);
  if (unused) store_.acquire(from.page);  // it must not be given up for its copy
  if (const auto page = store_.allocate(s.name_space)) {
    store_.copy(from.page, *page, tokens);
    s.pages.push_back(*page);
    store_.take_reserved(s.name_space, 1);
    const uint32_t counted = share(s, tokens);
    if (from.page == s.read_in_part) s.disk_tokens += counted;
  } else {
    s.evicted_until = std::max(s.evicted_until, s.computed + tokens);  // the only page that can be had is this one
  }
  if (unused) store_.release(from.page);
}

/// At a page border, where memory has no whole page more: true while the next pages are on their way from the disk.
bool PrefixCache::waits_for_disk(Sequence& s) {
  if (!disk_) return false;
  for (;;) {
    if (s.fetch) {
      const bool settled = disk_->settled(*s.fetch);
      const auto pages = static_cast<uint32_t>(s.fetch->pages.size());
      if (!settled && !(disk_->hangs(*s.fetch) && store_.may_reserve(s.name_space, pages))) return true;
      take_from_disk(s);
      share_stored(s);  // what others stored meanwhile
    }
    if (s.asked_disk_at == s.computed || may_share(s) == 0) return false;
    s.asked_disk_at = s.computed;
    if (may_share(s) >= kWorthWaiting && disk_->is_looking()) {
      s.asked_disk_at = kNeverAsked;
      return true;
    }
    read_from_disk(s);
    if (!s.fetch) return false;
  }
}

/// Pages are taken from those that the sequence has reserved.
void PrefixCache::read_from_disk(Sequence& s) {
  const auto index = static_cast<uint32_t>(s.pages.size());
  const PageId parent = parent_of(s, index);
  const auto known = store_.find(parent, s.name_space, page_tokens(s, index)).tokens;
  const auto rest = std::span(s.tokens).first(std::max(s.prompt_tokens, s.shareable_tokens())).subspan(s.computed);
  DiskFetch* fetch = disk_->plan(s.name_space, store_.key(parent), rest, known, s.wanted_pages - index);
  if (!fetch) return;
  while (fetch->pages.size() < fetch->places.size()) {
    const auto page = store_.allocate(s.name_space);
    if (!page) break;
    fetch->pages.push_back(*page);
    store_.take_reserved(s.name_space, 1);
  }
  if (!fetch->pages.empty()) s.fetch = fetch;
  disk_->start(*fetch);
}

/// Seals what has been read. The last page may hold only a part of the prompt: it is stored, and copied from there.
void PrefixCache::take_from_disk(Sequence& s) {
  DiskFetch& fetch = *std::exchange(s.fetch, nullptr);
  if (!fetch.finished.load(std::memory_order_acquire)) {  // it hangs: its pages stay behind
    store_.reserve_again(s.name_space, static_cast<uint32_t>(fetch.pages.size()));
    return disk_->abandon(fetch);
  }
  const uint32_t done = fetch.done.load(std::memory_order_acquire);
  for (uint32_t i = 0; i < fetch.pages.size(); ++i) {
    const PageId parent = parent_of(s, static_cast<uint32_t>(s.pages.size()));
    PageId page = fetch.pages[i];
    const shm::DiskPage& read = fetch.places[i].page;
    const auto tokens = std::span(read.tokens).first(read.n_tokens);
    if (i < done) page = store_.seal(page, parent, s.name_space, tokens, read.checksum);
    const auto wanted = page_tokens(s, static_cast<uint32_t>(s.pages.size()));
    if (i < done && may_share(s) >= kPageTokens && std::ranges::equal(tokens, wanted)) {
      s.pages.push_back(page);
      ++s.sealed_pages;
      s.disk_tokens += share(s, kPageTokens);
    } else {
      if (i < done) s.read_in_part = page;
      store_.release(page);
      store_.reserve_again(s.name_space, 1);
    }
  }
  disk_->give_back(fetch);
}

std::optional<Clock::time_point> PrefixCache::tend_disk(Clock::time_point now) noexcept {
  return disk_ ? disk_->tend(store_, now) : std::nullopt;
}

void PrefixCache::flush_disk(Clock::time_point until) noexcept {
  if (disk_) disk_->flush(store_, until);
}

bool PrefixCache::make_room(Sequence& s, uint32_t rows) noexcept {
  while (s.pages.size() < pages_for(s.computed + rows)) {
    const auto page = store_.allocate(s.name_space);
    if (!page) return false;
    s.pages.push_back(*page);
    store_.take_reserved(s.name_space, 1);
  }
  return true;
}

void PrefixCache::commit(Sequence& s, uint32_t rows) noexcept {
  s.count_computed(rows);
  s.computed += rows;
  s.done.store(s.computed, std::memory_order_relaxed);
  for (; s.computed >= (s.sealed_pages + 1) * kPageTokens; ++s.sealed_pages) {
    const uint32_t index = s.sealed_pages;
    s.pages[index] = store_.seal(s.pages[index], parent_of(s, index), s.name_space, page_tokens(s, index));
  }
}

uint32_t PrefixCache::own_pages(const Sequence& s) const {
  const auto own = std::count_if(s.pages.begin(), s.pages.end(), [&](PageId page) { return store_.uses(page) == 1; });
  return s.wanted_pages - static_cast<uint32_t>(s.pages.size()) + static_cast<uint32_t>(own);
}

void PrefixCache::leave(Sequence& s, bool keep) noexcept {
  if (s.wanted_pages != 0) {
    uint32_t taken = static_cast<uint32_t>(s.pages.size());
    if (s.fetch) {  // the disk gives its pages back
      taken += static_cast<uint32_t>(s.fetch->pages.size());
      disk_->abandon(*std::exchange(s.fetch, nullptr));
    }
    const uint32_t computed = s.counted - s.cached_tokens;
    store_.end_sequence(s.name_space, s.wanted_pages - taken, s.cached_tokens - s.told_cached,
                        computed - s.told_computed);
    s.told_cached = s.cached_tokens, s.told_computed = computed;
    if (s.ended) store_.hope_for_memory();
  }
  s.wanted_pages = 0;
  const uint32_t index = s.sealed_pages, rest = s.computed - index * kPageTokens;
  if (keep && rest != 0)
    s.pages[index] = store_.seal(s.pages[index], parent_of(s, index), s.name_space, page_tokens(s, index).first(rest));
  if (keep && s.ended && s.request.pin && !s.pages.empty()) s.pin = store_.pin(s.pages.back());
  if (const uint32_t sealed = index + (keep && rest != 0); disk_ && sealed != 0)
    disk_->ended(s.pages[sealed - 1], s.cached_tokens / kPageTokens);
  while (!s.pages.empty()) {  // the last first, so that the pages before it count as used later
    store_.release(s.pages.back());
    s.pages.pop_back();
  }
}

}  // namespace ellm::serve
