// Who has got how much: one account per user and class, with what it was served in tokens per weight (start-time fair
// queueing), what it holds and what it waits for. The engine thread alone uses it; nothing here allocates.
//
// The account that was served least goes first. What counts is served while somebody wants more than there is: an
// account that gets all it asks for does not save up for later, but for a small credit, which lets a newcomer's short
// prompt go first; and what nobody else wanted is not held against the one who took it.
#pragma once
#include <cstdint>
#include <list>
#include <memory>

#include "daemon/serve/engine.h"

namespace ellm::serve {

struct Sequence;

struct Account {
  uint32_t uid = 0, weight = 1;
  Priority priority = Priority::interactive;
  double served = 0;                                  // tokens / weight; comparable within a class
  uint32_t running = 0, pages = 0;                    // of its running requests; pages that they use or have reserved
  std::list<std::shared_ptr<Sequence>> waiting;       // by id; those that gave back are ahead of those that came later
  uint32_t passed = 0;                                // by later requests, since the first waiting one is the first
  bool wants = false;                                 // more than it gets
  bool turned_away = false;                           // in the present round of admissions
  bool beyond_share = false;                          // its first waiting one would take more pages than its user may
  bool by_age = true;                                 // its next rows go to its oldest prompt, not to its shortest
  double planned = 0;                                 // rows of the present step / weight
  uint32_t to_give_back = 0, pages_to_give_back = 0;  // while it is asked who could

  bool active() const { return running != 0 || !waiting.empty(); }
};

class FairShares {
 public:
  using Accounts = std::list<Account>;

  /// The account of this user and class; `spare`, which has one element, becomes it where there is none yet.
  Account& join(Accounts& spare);
  void charge(Account& account, uint32_t tokens) { account.served += static_cast<double>(tokens) / account.weight; }
  /// After a step: what nobody contends for is forgotten, and accounts that have nothing to remember go.
  void settle();

  Accounts& accounts() { return accounts_; }
  /// Requests of this user that run, in both classes.
  uint32_t running_of(uint32_t uid) const;
  uint32_t running_of(Priority priority) const;

 private:
  void settle(Priority priority);
  double least_to_start_with(const Account& account) const;

  Accounts accounts_;
  double level_[kPriorities] = {};  // what the account that is served next had been served
};

}  // namespace ellm::serve
