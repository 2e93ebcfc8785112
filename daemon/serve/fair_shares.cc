// See fair_shares.h.
#include "daemon/serve/fair_shares.h"

#include <algorithm>
#include <limits>

namespace ellm::serve {
namespace {

constexpr double kCredit = 512;  // tokens that a newcomer may be ahead

}  // namespace

double FairShares::least_to_start_with(const Account& account) const {
  return level_[static_cast<size_t>(account.priority)] - kCredit / account.weight;
}

Account& FairShares::join(Accounts& spare) {
  const Account& wanted = spare.front();
  auto found = std::find_if(accounts_.begin(), accounts_.end(), [&](const Account& account) {
    return account.uid == wanted.uid && account.priority == wanted.priority;
  });
  if (found == accounts_.end()) {
    accounts_.splice(accounts_.end(), spare);
    found = std::prev(accounts_.end());
    found->served = least_to_start_with(*found);
  }
  if (!found->active()) found->served = std::max(found->served, least_to_start_with(*found));
  return *found;
}

void FairShares::settle(Priority priority) {
  double least_wanting = std::numeric_limits<double>::infinity(), most = level_[static_cast<size_t>(priority)];
  for (const Account& account : accounts_) {
    if (account.priority != priority || !account.active()) continue;
    most = std::max(most, account.served);
    if (account.wants) least_wanting = std::min(least_wanting, account.served);
  }
  double& level = level_[static_cast<size_t>(priority)];
  level = std::max(level, std::min(least_wanting, most));
  for (Account& account : accounts_) {
    if (account.priority == priority && account.active() && !account.wants) {
      account.served = std::max(account.served, least_to_start_with(account));
    }
  }
}

void FairShares::settle() {
  settle(Priority::interactive);
  settle(Priority::batch);
  bool contended[kPriorities] = {};
  for (const Account& account : accounts_) contended[static_cast<size_t>(account.priority)] |= account.active();
  accounts_.remove_if([&](const Account& account) {
    if (account.active()) return false;
    return !contended[static_cast<size_t>(account.priority)] || account.served <= least_to_start_with(account);
  });
}

uint32_t FairShares::running_of(uint32_t uid) const {
  uint32_t running = 0;
  for (const Account& account : accounts_) running += account.uid == uid ? account.running : 0;
  return running;
}

uint32_t FairShares::running_of(Priority priority) const {
  uint32_t running = 0;
  for (const Account& account : accounts_) running += account.priority == priority ? account.running : 0;
  return running;
}

}  // namespace ellm::serve
