// Who of those that wait runs next, and who gives back for them. The engine thread alone calls it; nothing allocates
// but the room for a request's page numbers.
//
// The order: requests that were passed by too often; then interactive before batch, but for batch's share of the
// places; then the account that was served least; then the older request. Who lacks pages lets others pass, a limited
// number of times: a request waits at most for those before it and for max_running (batch: four times that) later ones,
// then for what it needs to be given back or to end. Whom its own user's limits hold back waits for that user's other
// requests; who is admitted meanwhile does not pass it.
//
// Preemption: where an interactive request lacks a place or pages, batch requests give back, the latest first; within
// a class users that have no less than the waiting one would have then (by weight) and were served no less. Where its
// own user runs as many pages as his share allows (shm/page_shares.h), only his batch requests give back. What gives
// back is sealed and cached, waits at the head of its account and is spared after kMostPreemptions times.
#pragma once
#include "daemon/serve/prefix_cache.h"

namespace ellm::serve {

class Admission {
 public:
  struct Outcome {
    virtual ~Outcome() = default;
    virtual void admitted(Sequence& sequence) = 0;
    virtual void preempted(Sequence& sequence) = 0;
    /// No memory to admit it: it is to end and to leave its account.
    virtual void lacked_memory(Sequence& sequence, const std::exception& why) = 0;
  };

  Admission(const EngineLimits& limits, PrefixCache& cache, FairShares& shares, SequenceList& running, Outcome& outcome)
      : limits_(limits), cache_(cache), shares_(shares), running_(running), outcome_(outcome) {}

  void enqueue(SequenceList& from, SequenceList::iterator sequence);
  /// Moves to the running ones whom there is room for.
  void admit();
  /// A running sequence that leaves: its account gets back what it holds. Before the cache is told.
  void discharge(Sequence& sequence);
  /// A running sequence waits again.
  void give_back(const Sequence& sequence);

 private:
  enum class Lack : uint8_t { place, pages, share };

  void line_up(SequenceList& from, SequenceList::iterator sequence);
  Account* next();
  bool before(const Account& a, const Account& b) const;
  bool overdue(const Account& account) const;
  bool held_by_own_limits(const Account& account) const;
  bool batch_has_claim() const;
  bool admit_first(Account& account);
  bool make_way(const Sequence& sequence);
  bool can_take_from(const Account& account, const Sequence& sequence, const Sequence& victim, Lack lack) const;
  Sequence* find_victim(const Sequence& sequence, Lack lack);
  bool mark_victims(const Sequence& sequence);
  void preempt_marked();
  void preempt(SequenceList::iterator sequence);

  const EngineLimits& limits_;
  PrefixCache& cache_;
  FairShares& shares_;
  SequenceList& running_;
  Outcome& outcome_;
};

}  // namespace ellm::serve
