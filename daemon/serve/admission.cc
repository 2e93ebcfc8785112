// See admission.h.
#include "daemon/serve/admission.h"

#include <algorithm>
#include <new>
#include <tuple>
#include <utility>

namespace ellm::serve {
namespace {

constexpr uint32_t kMostPreemptions = 3;
constexpr uint32_t kBatchPatience = 4;

/// Places that batch requests have a claim to.
uint32_t batch_places(const EngineLimits& limits) {
  if (limits.batch_percent == 0 || limits.max_running < 2) return 0;
  return std::max(1u, limits.max_running * limits.batch_percent / 100);
}

/// Whether `more` things to `a` and `fewer` for `b` leave `b` with no less than `a`, by weight.
bool still_has_no_less(const Account& b, double left, const Account& a, double wanted) {
  return left / b.weight >= wanted / a.weight;
}

}  // namespace

void Admission::enqueue(SequenceList& from, SequenceList::iterator sequence) {
  Sequence& s = **sequence;
  s.account = &shares_.join(s.spare_account);
  s.spare_account.clear();
  line_up(from, sequence);
}

void Admission::line_up(SequenceList& from, SequenceList::iterator sequence) {
  const Sequence& s = **sequence;
  auto& waiting = s.account->waiting;
  auto after = waiting.end();
  while (after != waiting.begin() && (*std::prev(after))->id > s.id) --after;
  if (waiting.empty()) s.account->passed = 0;
  waiting.splice(after, from, sequence);
}

bool Admission::overdue(const Account& account) const {
  const uint32_t patience = account.priority == Priority::batch ? kBatchPatience : 1;
  return account.passed >= patience * limits_.max_running;
}

/// Whether its first request waits for others of its user.
bool Admission::held_by_own_limits(const Account& account) const {
  return account.beyond_share ||
         (limits_.running_per_user != 0 && shares_.running_of(account.uid) >= limits_.running_per_user);
}

bool Admission::batch_has_claim() const { return shares_.running_of(Priority::batch) < batch_places(limits_); }

bool Admission::before(const Account& a, const Account& b) const {
  const bool batch_first = batch_has_claim();
  const auto key = [&](const Account& account) {
    const bool batch = account.priority == Priority::batch;
    const RequestId id = account.waiting.front()->id;
    return std::tuple(!overdue(account), overdue(account) ? id : 0, batch != batch_first, account.served, id);
  };
  return key(a) < key(b);
}

/// Whose first request is to be admitted next; null: nobody's can be.
Account* Admission::next() {
  Account* best = nullptr;
  for (Account& account : shares_.accounts()) {
    if (account.waiting.empty() || account.turned_away) continue;
    if (limits_.running_per_user != 0 && shares_.running_of(account.uid) >= limits_.running_per_user) continue;
    if (!best || before(account, *best)) best = &account;
  }
  return best;
}

void Admission::admit() {
  for (Account& account : shares_.accounts()) account.turned_away = account.wants = false;
  while (Account* account = next()) {
    if (admit_first(*account)) continue;
    account->turned_away = account->wants = true;
    account->beyond_share = cache_.lack(*account->waiting.front()).of_share != 0;
    if (overdue(*account) && !account->beyond_share) break;  // nobody passes it any more
  }
  for (Account& account : shares_.accounts()) account.wants |= !account.waiting.empty();
}

/// False: there is no room for it now.
bool Admission::admit_first(Account& account) {
  Sequence& s = *account.waiting.front();
  try {
    while (running_.size() >= limits_.max_running || !cache_.admit(s)) {
      if (!make_way(s)) return false;
    }
  } catch (const std::bad_alloc& e) {
    outcome_.lacked_memory(s, e);
    return true;
  }
  for (Account& other : shares_.accounts()) {
    if (&other == &account || other.waiting.empty() || held_by_own_limits(other)) continue;
    if (other.waiting.front()->id < s.id) ++other.passed;
  }
  account.passed = 0;
  account.beyond_share = false;
  running_.splice(running_.end(), account.waiting, account.waiting.begin());
  ++account.running;
  s.charged_pages = s.wanted_pages;
  account.pages += s.charged_pages;
  outcome_.admitted(s);
  return true;
}

void Admission::discharge(Sequence& s) {
  if (waits(s.phase.load(std::memory_order_relaxed))) return;
  --s.account->running;
  s.account->pages -= s.charged_pages;
  s.charged_pages = 0;
}

// ---- preemption -----------------------------------------------------------------------------------------------------

bool Admission::can_take_from(const Account& account, const Sequence& s, const Sequence& victim, Lack lack) const {
  const Account& other = *victim.account;
  if (victim.to_give_back || victim.preemptions.load(std::memory_order_relaxed) >= kMostPreemptions) return false;
  if (victim.ended || &other == &account) return false;
  if (lack == Lack::share) {
    return s.name_space == victim.name_space && account.priority == Priority::interactive &&
           other.priority == Priority::batch;
  }
  if (overdue(account)) return true;
  if (account.priority == Priority::interactive && other.priority == Priority::batch)
    return shares_.running_of(Priority::batch) > batch_places(limits_) || lack == Lack::pages;
  if (account.priority == Priority::batch && other.priority == Priority::interactive)
    return lack == Lack::place && batch_has_claim();
  if (account.served > other.served) return false;
  if (lack == Lack::place)
    return still_has_no_less(other, double(other.running - other.to_give_back) - 1, account, account.running + 1.0);
  const double left = double(other.pages - other.pages_to_give_back) - victim.charged_pages;
  return still_has_no_less(other, left, account, double(account.pages) + s.kv_pages());
}

/// The latest of the lowest class that can be taken from.
Sequence* Admission::find_victim(const Sequence& s, Lack lack) {
  Sequence* best = nullptr;
  for (const auto& victim : running_) {
    if (!can_take_from(*s.account, s, *victim, lack)) continue;
    const auto key = [](const Sequence& v) { return std::tuple(v.request.priority, v.id); };
    if (!best || key(*victim) > key(*best)) best = victim.get();
  }
  return best;
}

/// Marks whoever has to give back for `s`. False: that would not be enough.
bool Admission::mark_victims(const Sequence& s) {
  bool place = running_.size() < limits_.max_running;
  auto [pages, of_share] = cache_.lack(s);
  if (place && pages == 0 && of_share == 0) return false;
  while (!place || pages != 0 || of_share != 0) {
    Sequence* victim = find_victim(s, of_share != 0 ? Lack::share : place ? Lack::pages : Lack::place);
    if (!victim) return false;
    victim->to_give_back = true;
    ++victim->account->to_give_back;
    victim->account->pages_to_give_back += victim->charged_pages;
    const uint32_t own = cache_.own_pages(*victim);
    pages -= std::min(pages, own);
    of_share -= victim->name_space == s.name_space ? std::min(of_share, own) : 0;
    place = true;
  }
  return true;
}

bool Admission::make_way(const Sequence& s) {
  const bool enough = mark_victims(s);
  for (Account& account : shares_.accounts()) account.to_give_back = account.pages_to_give_back = 0;
  if (enough) preempt_marked();
  for (const auto& sequence : running_) sequence->to_give_back = false;
  return enough;
}

void Admission::preempt_marked() {
  for (auto next = running_.begin(); next != running_.end();) {
    const auto sequence = next++;
    if (std::exchange((*sequence)->to_give_back, false)) preempt(sequence);
  }
}

void Admission::preempt(SequenceList::iterator sequence) {
  Sequence& s = **sequence;
  discharge(s);
  cache_.leave(s, true);
  s.rewind();
  s.preemptions.fetch_add(1, std::memory_order_relaxed);
  outcome_.preempted(s);
  line_up(running_, sequence);
}

void Admission::give_back(const Sequence& s) {
  preempt(std::ranges::find_if(running_, [&](const auto& each) { return each.get() == &s; }));
}

}  // namespace ellm::serve
