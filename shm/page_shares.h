// Who has how many pages of a cache, and who gives one up when one is wanted. A page belongs to the namespace that
// computed it. The engine thread calls everything; nothing here allocates memory after construction.
//
// Everybody who is present (used the cache lately) has a share: the pages by weight. A share that is not used is lent:
// as long as pages are free anybody takes them. When none is free one goes from whom has most for his weight, the page
// for which room is made included, among those who have a page that can go; from those who are absent before all
// others. So nobody who has no more than his share loses a page while another who has more than his could give one.
//
// What runs cannot be taken back. So may_take() refuses who would use more than his share for pages that others have
// within theirs; but somebody of whom nothing runs may always have one request run.
#pragma once
#include <boost/intrusive/list.hpp>
#include <boost/intrusive/set.hpp>
#include <cstdint>
#include <utility>
#include <vector>

namespace ellm::shm {

struct ShareOptions {
  std::vector<std::pair<uint64_t, uint32_t>> weights = {};  // of namespaces; all others have 1
  uint64_t present_ns = UINT64_MAX;                         // how long somebody is present after a use
  uint32_t most_pinned = UINT32_MAX;                        // pages, of all together
  uint32_t pinned_percent = 100;                            // of his share that one may pin
  /// Nanoseconds since 1970; ages of pages and of shares are told by it. Null: the system's clock.
  uint64_t (*now_ns)() = nullptr;
};

class PageShares {
 public:
  struct Account {
    uint64_t name_space = 0;
    uint32_t weight = 1;
    uint32_t pages = 0;      // that are not free, of these
    uint32_t held = 0;       //   used by sequences or pinned
    uint32_t pinned = 0;     //   pinned, with all pages before them
    uint32_t may_go = 0;     //   that may be given up as they are: leaves, used by nobody
    uint32_t reserved = 0;   // pages that its sequences may still take
    uint32_t sequences = 0;  // that have reserved
    uint64_t last_seen_ns = 0;
    bool present = false;
    // Since it last had nothing.
    uint64_t evicted_pages = 0, cached_tokens = 0, computed_tokens = 0;

    bool is_known() const { return by_name.is_linked(); }
    uint32_t committed() const { return held + reserved; }

    boost::intrusive::set_member_hook<boost::intrusive::optimize_size<true>> by_name, by_excess;
    boost::intrusive::list_member_hook<> by_presence, spare;
  };

  /// `pages`: of the whole cache.
  PageShares(uint32_t pages, const ShareOptions& options);
  ~PageShares();

  const ShareOptions& options() const { return options_; }
  uint64_t now() const { return options_.now_ns(); }
  /// The account of a namespace that uses the cache now.
  Account& enter(uint64_t name_space);
  /// The same without a use, such as of pages that an earlier process left: new accounts are present.
  Account& open(uint64_t name_space);
  const Account* find(uint64_t name_space) const;
  uint32_t number(const Account& account) const { return static_cast<uint32_t>(&account - accounts_.data()); }
  Account& at(uint32_t number) { return accounts_[number]; }
  const Account& at(uint32_t number) const { return accounts_[number]; }
  template <class F>  // for each account that has or had pages, by namespace
  void for_each(F&& f) const {
    for (const Account& account : by_name_) f(account);
  }

  /// Changes an account's counts and puts it where it belongs then.
  template <class F>
  void change(Account& account, F&& f) {
    unplace(account);
    f(account);
    place(account);
  }

  /// Who gives up the next page: he has one that may go. Null: nobody has.
  Account* giver();
  /// Pages of one who is present; 0 of one who is not.
  uint32_t share(const Account& account) const;
  /// Whether one who wants `need` pages more, for a sequence, leaves others what they have within their shares.
  bool may_take(const Account& account, uint32_t need) { return excess(account, need) == 0; }
  /// How many fewer pages he would have to hold or to want for that.
  uint32_t excess(const Account& account, uint32_t need);

 private:
  struct ByName {
    using type = uint64_t;
    uint64_t operator()(const Account& account) const { return account.name_space; }
  };
  struct ByExcess {
    bool operator()(const Account& a, const Account& b) const;
  };
  using SetHook = boost::intrusive::set_member_hook<boost::intrusive::optimize_size<true>>;
  using ListHook = boost::intrusive::list_member_hook<>;

  bool is_empty(const Account& account) const { return account.pages == 0 && account.sequences == 0; }
  uint32_t weight_of(uint64_t name_space) const;
  void unplace(Account& account);
  void place(Account& account);
  void set_present(Account& account, bool present);
  void expire();

  ShareOptions options_;
  uint32_t pages_;
  uint64_t weights_ = 0;  // of those who are present
  std::vector<Account> accounts_;
  boost::intrusive::set<Account, boost::intrusive::member_hook<Account, SetHook, &Account::by_name>,
                        boost::intrusive::key_of_value<ByName>>
      by_name_;
  boost::intrusive::set<Account, boost::intrusive::member_hook<Account, SetHook, &Account::by_excess>,
                        boost::intrusive::compare<ByExcess>>
      by_excess_;  // who can give up a page, the next one first
  boost::intrusive::list<Account, boost::intrusive::member_hook<Account, ListHook, &Account::by_presence>>
      by_presence_;  // those who are present, who was seen longest ago first
  boost::intrusive::list<Account, boost::intrusive::member_hook<Account, ListHook, &Account::spare>>
      spare_;  // that have nothing, to be another's account: who had nothing for longest first
};

}  // namespace ellm::shm
