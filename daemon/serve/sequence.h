// One request on its way through the engine. The engine thread owns it; other threads raise `ending` and read the
// progress counters.
#pragma once
#include <array>
#include <atomic>
#include <chrono>
#include <list>
#include <memory>
#include <optional>
#include <vector>

#include "daemon/serve/engine.h"
#include "daemon/serve/fair_shares.h"
#include "shm/kv_pages.h"

namespace ellm::serve {

struct DiskFetch;
inline constexpr uint32_t kNeverAsked = ~0u;

using Clock = std::chrono::steady_clock;

enum class Phase : uint8_t { queued, prefill, decode, preempted };
inline bool waits(Phase phase) { return phase == Phase::queued || phase == Phase::preempted; }

//  queued ──admitted──► prefill ──last prompt row──► decode ──► ended
//     │                  │  ▲                           │
//     │                  └──┼── gives back ─────────────┤
//     │                     └── admitted ── preempted ◄─┘
//     └── cancel, deadline, failure: from everywhere ──► ended
// A preempted request has no pages, but all its tokens; what it had computed is in the cache as long as there is room,
// and what is not any more is computed anew, answer included, as a prompt is: the same bits, by the fixed-order rule.
// `computed` tokens have their K and V in `pages`; tokens [computed, size) are still to be run. A generated token is
// run in the step after the one that drew it, so the last token of an answer never is.
struct Sequence {
  Sequence(RequestId number, EngineRequest&& r, uint32_t limit_tokens, const kernels::KernelSet& kernels,
           uint32_t weight, Clock::time_point now);

  RequestId id;
  EngineRequest request;
  model::Sampler sampler;
  std::vector<uint32_t> tokens;  // prompt, then what was generated
  uint32_t prompt_tokens;
  uint32_t limit;  // tokens at which the sequence ends
  uint32_t computed = 0;
  uint32_t prefill_end;                // tokens that are run as a prompt: those that there were when it was admitted
  uint32_t counted = 0;                // tokens of the prompt that usage has accounted for
  bool ended = false, failed = false;  // how: `finish`, or a failure
  bool told = false;                   // the owner has heard it
  Finish finish = Finish::cancelled;
  RequestStats final_stats;

  // Kept by the scheduler.
  FairShares::Accounts spare_account;                                         // one, in case that its user has none
  Account* account = nullptr;                                                 // once enqueued
  uint32_t charged_pages = 0;                                                 // in the account
  uint64_t last_turn = 0;                                                     // in a step; greater than those before it
  uint32_t planned_rows = 0;                                                  // in the step being planned
  enum class Turn : uint8_t { unasked, open, blocked } turn = Turn::unasked;  // likewise: may its prompt go on
  bool to_give_back = false;                                                  // while it is asked who could

  // Kept by PrefixCache.
  uint64_t name_space;
  std::vector<shm::PageId> pages;  // used by this sequence; the first `sealed_pages` are sealed
  uint32_t sealed_pages = 0;
  uint32_t wanted_pages = 0;   // that the longest answer may take; 0 until admitted
  uint32_t cached_tokens = 0;  // of the prompt that others had computed
  // Why the others are computed: positions before which a reason holds, each behind the one before it.
  uint32_t logits_until = 0, namespace_until = 0, evicted_until = 0, unsealed_until = 0;
  uint32_t told_cached = 0, told_computed = 0;            // tokens that the pages' shares have been told of
  bool last_is_stored = false;                            // the prompt's last token
  DiskFetch* fetch = nullptr;                             // the next pages are being read
  uint32_t asked_disk_at = kNeverAsked, disk_tokens = 0;  // `computed` then; of cached_tokens
  shm::PageId read_in_part = shm::kNoPage;                // from disk, for a part of it
  std::array<uint32_t, kReasons> recomputed{};
  std::optional<shm::PageStore::Pin> pin;  // where the request wants it

  std::optional<float> carried_log_prob;  // score: of the first token of the next piece
  uint32_t scored = 0;                    // score: tokens whose rows of logits were used
  Clock::time_point submitted, admitted{}, first_token{}, last_token{};

  bool in_queue = false;  // counts as waiting: the engine's mutex guards it

  std::atomic<Phase> phase{Phase::queued};
  std::atomic<uint32_t> done{0};  // = computed, for other threads
  std::atomic<uint32_t> completion{0}, preemptions{0};
  enum class Ending : uint8_t { none, cancel, stop };
  std::atomic<Ending> ending{Ending::none};

  /// Tokens whose K and V must be stored at most.
  uint32_t kv_tokens() const { return request.score ? prompt_tokens : limit - 1; }
  bool prefilling() const { return computed < prefill_end; }
  uint32_t kv_pages() const { return (kv_tokens() + shm::kPageTokens - 1) / shm::kPageTokens; }
  /// Tokens whose pages it may take from others: for what follows its rows give logits.
  uint32_t shareable_tokens() const { return request.score ? scored : prefill_end - 1; }
  /// Counts the next `rows` tokens, as far as they are the prompt's, by why they are computed.
  void count_computed(uint32_t rows);
  /// Without pages, to be admitted again.
  void rewind();
  /// The first call decides how the request ends.
  void end(Ending how);
  /// Gives the owner the last word. An owner that throws must not end the engine, which serves the others; one that
  /// had no memory to hear it is to be told again (`told` stays false).
  void tell_end(const char* why, Fault fault = Fault::daemon) noexcept;
  RequestStats stats(Clock::time_point now) const;
  bool past_deadline(Clock::time_point now) const { return request.deadline && *request.deadline <= now; }
  RequestRow row(Clock::time_point now) const;
};

/// A list whose elements move to another list by splice(), which allocates nothing: once a request is submitted, no
/// lack of memory keeps it from reaching its end.
using SequenceList = std::list<std::shared_ptr<Sequence>>;

/// What a request that lacked memory is told.
inline constexpr const char* kNoMemory = "there is not enough memory for this request";

}  // namespace ellm::serve
