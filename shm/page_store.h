// Which page holds which prefix, who uses it, and which page goes when another is wanted. All of it is derived from the
// segment's sealed records and from the sequences that run. The engine thread calls everything; nothing here allocates
// memory after construction, so nothing but allocate() can fail.
//
// Sealed pages form a tree per namespace: a page's children are the pages that follow it in some text, each with other
// tokens, none of them the beginning of another. Every page of the segment is one of
//   free     no tokens
//   in use   by at least one sequence: being filled, or sealed and shared. With a page all pages before it are in use.
//   cached   sealed and used by nobody. Of whose namespace one goes first, page_shares.h says; of his the one used
//   least
//            recently among those without children. Pinned ones stay, and with them all pages before them.
// so free_pages() + used_pages() + cached_pages() = total_pages(), always.
#pragma once
#include <array>
#include <boost/intrusive/set.hpp>
#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "shm/kv_pages.h"
#include "shm/page_shares.h"

namespace ellm::shm {

class PageStore {
 public:
  /// Takes over the sealed pages of a segment whose chain of parents reaches the root, and frees the others.
  explicit PageStore(KvPages& kv, const ShareOptions& options = {});
  ~PageStore();

  uint32_t total_pages() const { return kv_.total_pages(); }
  uint32_t free_pages() const { return kv_.free_pages(); }
  uint32_t used_pages() const { return used_; }
  uint32_t cached_pages() const { return total_pages() - free_pages() - used_; }

  /// The sealed page behind `parent` (kNoPage: at a text's beginning) that has the most first tokens in common with
  /// `tokens`, and how many; kNoPage and 0 where none has one. A page that an earlier process sealed is checked when it
  /// is found for the first time; if it was damaged, it is free with all pages behind it, and the next best is found.
  struct Hit {
    PageId page = kNoPage;
    uint32_t tokens = 0;
  };
  Hit find(PageId parent, uint64_t name_space, std::span<const uint32_t> tokens);
  /// Pages that were found damaged.
  uint32_t damaged_pages() const { return damaged_; }

  bool in_use(PageId page) const { return nodes_[page].uses != 0; }
  /// In use or pinned: not to be had.
  bool is_held(PageId page) const { return nodes_[page].held; }
  uint32_t uses(PageId page) const { return nodes_[page].uses; }
  /// One more user of a sealed page whose parent is in use.
  void acquire(PageId page);
  /// One user fewer. With the last one a page that is not sealed becomes free.
  void release(PageId page);

  /// Sets pages aside for a sequence of a namespace, which allocates or acquires them later: `need`, of pages that are
  /// not held now. False, and nothing changed, where that many are not to be had, or not for this namespace now. A page
  /// that is set aside is always to be had. `need` is what a sequence asks for, of a namespace that is using the cache
  /// now.
  bool may_reserve(uint64_t name_space, uint32_t need) {
    return beyond_share(name_space, need) == 0 && lacking(need) == 0;
  }
  /// What it lacks for that: pages that nobody holds; pages of its own that would have to be given back.
  uint32_t lacking(uint32_t need) const;
  uint32_t beyond_share(uint64_t name_space, uint32_t need) { return shares_.excess(shares_.enter(name_space), need); }
  void begin_sequence(uint64_t name_space, uint32_t reserved);
  void take_reserved(uint64_t name_space, uint32_t pages);  // they are held now, or not wanted any more
  void reserve_again(uint64_t name_space, uint32_t pages);  // they were taken, and are not held any more
  /// `cached` of its prompt's tokens were found, `computed` were not.
  void end_sequence(uint64_t name_space, uint32_t reserved, uint64_t cached, uint64_t computed);
  /// Free pages for which allocate() found no memory are not to be had until this is called.
  void hope_for_memory() { lacks_memory_ = false; }

  /// A page to fill, in use by the caller. Gives up a cached page where none is free, or where there is no memory for
  /// it. Absent when that does not help.
  std::optional<PageId> allocate(uint64_t name_space);
  void copy(PageId from, PageId to, uint32_t tokens) { kv_.copy(from, to, tokens); }
  /// Seals a page that the caller alone uses. Where there is a page that holds these tokens already, the caller uses
  /// that one from now on and its own is free. Returns the page that the caller uses. `checksum`: of the payload, where
  /// it is known already.
  PageId seal(PageId page, PageId parent, uint64_t name_space, std::span<const uint32_t> tokens,
              std::optional<uint64_t> checksum = {});

  /// Pins the prefix that ends with a sealed page.
  enum class Pin : uint8_t {
    done,
    beyond_all,    // more than all together may pin
    beyond_share,  // more than its namespace may pin
    no_room_now    // requests that run have set aside what would be held
  };
  Pin pin(PageId page);
  void unpin(PageId page);
  bool is_pinned(PageId page) const;  // by a pin of its own
  uint32_t pinned_pages() const { return pinned_; }
  const ShareOptions& limits() const { return shares_.options(); }

  /// Gives up a namespace's pages that nobody uses; those that are pinned only if `pinned` says so. Returns how many.
  uint32_t flush(uint64_t name_space, bool pinned);

  // What there is. The page of a `Leaf` ends a prefix that no stored text continues.
  bool is_stored(PageId page) const { return nodes_[page].by_text.is_linked(); }
  bool is_leaf(PageId page) const { return nodes_[page].by_text.is_linked() && nodes_[page].children == 0; }
  PageId parent(PageId page) const { return nodes_[page].parent; }
  const PageRecordData& record(PageId page) const { return kv_.record(page); }
  const PageShares& shares() const { return shares_; }
  uint64_t page_bytes() const { return kv_.geometry().page_bytes(); }

  PageKey key(PageId page) const;  // of a sealed page; the root's for kNoPage
  /// Whether a page with this key was given up, as far as is remembered.
  bool was_evicted(const PageKey& key) const;

 private:
  using Hook = boost::intrusive::set_member_hook<boost::intrusive::optimize_size<true>>;
  struct Node {
    PageId parent = kNoPage;
    uint32_t uses = 0, children = 0;
    uint32_t pins = 0;    // its own, and one for each child with pins
    uint32_t owner = 0;   // PageShares::number
    bool checked = true;  // its payload is what was sealed
    bool held = false;
    Hook by_text, by_age;
  };
  struct Text {  // a place in a text
    PageId parent;
    uint64_t name_space;
    std::span<const uint32_t> tokens;
  };
  struct TextOrder {
    const PageStore* store;
    bool operator()(const Node& a, const Node& b) const { return less(store->text_of(a), store->text_of(b)); }
    bool operator()(const Node& a, const Text& b) const { return less(store->text_of(a), b); }
    bool operator()(const Text& a, const Node& b) const { return less(a, store->text_of(b)); }
    static bool less(const Text& a, const Text& b);
  };
  struct AgeOrder {  // by owner, then the least recently used
    const PageStore* store;
    bool operator()(const Node& a, const Node& b) const;
    bool operator()(const Node& a, uint32_t owner) const { return a.owner < owner; }
  };
  template <Hook Node::* hook, class Order>
  using Set = boost::intrusive::set<Node, boost::intrusive::member_hook<Node, Hook, hook>,
                                    boost::intrusive::compare<Order>, boost::intrusive::constant_time_size<false>>;

  PageId id_of(const Node& node) const { return static_cast<PageId>(&node - nodes_.data()); }
  Text text_of(const Node& node) const;
  uint64_t next_use();
  PageShares::Account& owner(PageId page) { return shares_.at(nodes_[page].owner); }
  void own(PageId page, PageShares::Account& account);
  void give_back(PageId page);
  void update(Node& node);
  void drop_shorter_siblings();
  Pin pin(PageId page, uint64_t most);
  void set_pin(PageId page, bool pinned);
  void recover();
  bool link(PageId page, PageId parent);
  Hit look_up(PageId parent, uint64_t name_space, std::span<const uint32_t> tokens) const;
  bool check(PageId page);
  void drop(PageId page);
  void drop_branch(PageId page);
  bool evict_one();

  KvPages& kv_;
  PageShares shares_;
  uint32_t used_ = 0, held_ = 0, pinned_ = 0, reserved_ = 0, damaged_ = 0;
  bool lacks_memory_ = false;               // for free pages
  uint64_t last_use_ = 0;                   // the latest
  std::vector<Node> nodes_;                 // by page
  Set<&Node::by_text, TextOrder> by_text_;  // the sealed pages
  Set<&Node::by_age, AgeOrder> by_age_;     // those that may be given up
  using Bucket = std::array<uint64_t, 8>;
  std::vector<Bucket> evicted_;  // key.low of pages given up, the latest first, by key.low mod the number of buckets
};

}  // namespace ellm::shm
