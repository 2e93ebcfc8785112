// See page_shares.h.
#include "shm/page_shares.h"

#include <algorithm>
#include <cassert>
#include <chrono>

namespace ellm::shm {
namespace {

uint64_t system_now_ns() {
  const auto since = std::chrono::system_clock::now().time_since_epoch();
  return static_cast<uint64_t>(std::chrono::duration_cast<std::chrono::nanoseconds>(since).count());
}

// Sequences without a page that wait for their first step; the engine runs no more at once.
constexpr uint32_t kMostSequences = 4096;

}  // namespace

bool PageShares::ByExcess::operator()(const Account& a, const Account& b) const {
  if (a.present != b.present) return !a.present;
  const uint64_t excess_a = uint64_t{a.pages} * b.weight, excess_b = uint64_t{b.pages} * a.weight;
  return excess_a != excess_b ? excess_a > excess_b : &a < &b;
}

PageShares::PageShares(uint32_t pages, const ShareOptions& options)
    : options_(options), pages_(pages), accounts_(size_t{pages} + std::min(pages, kMostSequences) + 1) {
  if (options_.now_ns == nullptr) options_.now_ns = system_now_ns;
  std::ranges::sort(options_.weights);
  for (Account& account : accounts_) spare_.push_back(account);
}

PageShares::~PageShares() {
  by_name_.clear();
  by_excess_.clear();
  by_presence_.clear();
  spare_.clear();
}

uint32_t PageShares::weight_of(uint64_t name_space) const {
  const auto found = std::ranges::lower_bound(options_.weights, name_space, {}, &std::pair<uint64_t, uint32_t>::first);
  return found == options_.weights.end() || found->first != name_space ? 1 : std::max(1u, found->second);
}

PageShares::Account& PageShares::open(uint64_t name_space) {
  if (const auto found = by_name_.find(name_space); found != by_name_.end()) return *found;
  assert(!spare_.empty());  // every other account has a page or a sequence, and there are not that many
  Account& account = spare_.front();
  if (account.is_known()) {
    set_present(account, false);
    by_name_.erase(by_name_.iterator_to(account));
  }
  account.name_space = name_space;
  account.weight = weight_of(name_space);
  account.evicted_pages = account.cached_tokens = account.computed_tokens = 0;
  account.last_seen_ns = now();
  by_name_.insert(account);
  spare_.splice(spare_.end(), spare_, spare_.iterator_to(account));
  set_present(account, true);
  return account;
}

PageShares::Account& PageShares::enter(uint64_t name_space) {
  Account& account = open(name_space);
  account.last_seen_ns = now();
  if (account.present) {
    by_presence_.splice(by_presence_.end(), by_presence_, by_presence_.iterator_to(account));
  } else {
    change(account, [this](Account& a) { set_present(a, true); });
  }
  return account;
}

const PageShares::Account* PageShares::find(uint64_t name_space) const {
  const auto found = by_name_.find(name_space);
  return found == by_name_.end() ? nullptr : &*found;
}

/// Of an account that is not among by_excess_ just now.
void PageShares::set_present(Account& account, bool present) {
  if (account.present == present) return;
  account.present = present;
  if (present) {
    weights_ += account.weight;
    by_presence_.push_back(account);
  } else {
    weights_ -= account.weight;
    by_presence_.erase(by_presence_.iterator_to(account));
  }
}

/// Whoever has used nothing for too long is absent, but for those whose requests run.
void PageShares::expire() {
  const uint64_t time = now();
  while (!by_presence_.empty()) {
    Account& account = by_presence_.front();
    if (time <= account.last_seen_ns || time - account.last_seen_ns <= options_.present_ns) return;
    if (account.sequences == 0) {
      change(account, [this](Account& a) { set_present(a, false); });
    } else {
      account.last_seen_ns = time;
      by_presence_.splice(by_presence_.end(), by_presence_, by_presence_.begin());
    }
  }
}

void PageShares::unplace(Account& account) {
  if (account.by_excess.is_linked()) by_excess_.erase(by_excess_.iterator_to(account));
  if (account.spare.is_linked()) spare_.erase(spare_.iterator_to(account));
}

void PageShares::place(Account& account) {
  if (account.may_go != 0) by_excess_.insert(account);
  if (is_empty(account)) spare_.push_back(account);
}

PageShares::Account* PageShares::giver() {
  expire();
  return by_excess_.empty() ? nullptr : &*by_excess_.begin();
}

uint32_t PageShares::share(const Account& account) const {
  return account.present ? static_cast<uint32_t>(uint64_t{pages_} * account.weight / weights_) : 0;
}

uint32_t PageShares::excess(const Account& account, uint32_t need) {
  expire();
  const uint64_t wanted = uint64_t{account.committed()} + need;
  const uint32_t own = share(account);
  if (account.sequences == 0 || wanted <= own) return 0;
  uint64_t others = 0;  // that run, are pinned or within a share
  for (const Account& other : by_name_) {
    if (&other != &account) others += std::max(other.committed(), std::min(other.pages, share(other)));
  }
  if (wanted + others <= pages_) return 0;
  return static_cast<uint32_t>(std::min(wanted - own, wanted + others - pages_));
}

}  // namespace ellm::shm
