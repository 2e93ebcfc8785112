// What the sequences of one model share: on admission and at every page border of its prompt a sequence takes over the
// pages that hold its next tokens already, and copies the beginning of one that matches in part or that another is
// filling; what it computes itself is sealed for those that come after it. Also the account of a model's pages. The
// engine thread calls everything.
//
// A sequence reserves the pages that its longest answer may take, less those that it shares; what the running ones use
// and have reserved never exceeds the total. Pages that nobody uses can all be given up, so a reserved page is always
// to be had, and who waits for room waits only for sequences that run to an end.
//
// Nobody waits in a circle for a page that another fills: only a sequence at a page border waits, and only for one that
// is beyond that border or computes rows in this very step.
#pragma once
#include "daemon/serve/disk_pages.h"
#include "daemon/serve/sequence.h"
#include "shm/page_store.h"

namespace ellm::serve {

class PrefixCache {
 public:
  /// `disk`: where there is one.
  explicit PrefixCache(shm::KvPages& kv, const shm::ShareOptions& shares = {}, DiskPages* disk = nullptr);

  /// Shares the stored beginning of the prompt and reserves the pages for the rest. False: no room now. Throws
  /// std::bad_alloc, as nothing else here does, and has changed nothing then.
  bool admit(Sequence& s);
  /// What keeps it from being admitted: pages that others would have to give back, or its own user, who runs as much as
  /// his share allows.
  struct Lack {
    uint32_t pages = 0, of_share = 0;
  };
  Lack lack(const Sequence& s);
  /// Pages that others could have if a running sequence left.
  uint32_t own_pages(const Sequence& s) const;
  /// Before rows of a prompt are planned: shares what was stored since. False: the next page is being computed by one
  /// of `running` (their `planned_rows` so far), or read from disk.
  bool advance(Sequence& s, const SequenceList& running) noexcept;
  /// Takes the pages for the next `rows` tokens. False: the machine has no memory for them.
  bool make_room(Sequence& s, uint32_t rows) noexcept;
  /// `rows` tokens have been computed: counts them and seals the pages that they fill.
  void commit(Sequence& s, uint32_t rows) noexcept;
  /// The sequence has ended or gives back: its last page is sealed too if `keep`, and it uses nothing any more.
  void leave(Sequence& s, bool keep) noexcept;

  const shm::PageStore& pages() const { return store_; }
  shm::PageStore& pages() { return store_; }

  // The disk's (see DiskPages), where there is one.
  std::optional<Clock::time_point> tend_disk(Clock::time_point now) noexcept;
  void flush_disk(Clock::time_point until) noexcept;

 private:
  bool waits_for_disk(Sequence& s);
  void read_from_disk(Sequence& s);
  void take_from_disk(Sequence& s);
  void share_stored(Sequence& s);
  /// Of a sequence's next page.
  struct Beginning {
    shm::PageId page = shm::kNoPage;
    uint32_t tokens = 0;      // that `page` holds
    uint32_t coming = 0;      // that another sequence has or computes
    uint32_t seen_until = 0;  // position up to which another has the same text
  };
  Beginning find_beginning(const Sequence& s, const SequenceList& running);
  void copy(Sequence& s, const Beginning& from);
  void copy_own(Sequence& s);
  bool copy_page(Sequence& s, const shm::PageStore::Hit& hit);
  void look_ahead(Sequence& s);
  void look_elsewhere(Sequence& s);

  shm::PageStore store_;
  DiskPages* disk_;
};

}  // namespace ellm::serve
