// The engine: one thread that takes requests as token ids, runs steps over all loaded models' sequences, samples, and
// hands tokens back through a callback. First come, first served; several requests run in one step.
#pragma once
#include <array>
#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "daemon/model/model.h"
#include "daemon/model/sampler.h"
#include "daemon/runtime/worker_pool.h"
#include "shm/geometry.h"
#include "shm/page_shares.h"
#include "shm/page_store.h"

namespace ellm::serve {

struct CacheJob;
struct Servable;
class DiskTier;

using RequestId = uint64_t;

enum class Finish : uint8_t { stop, length, cancelled, deadline };

/// Interactive requests go before batch requests, which keep a share of their own.
enum class Priority : uint8_t { interactive, batch };
inline constexpr size_t kPriorities = 2;

struct EngineLimits {
  uint32_t max_running = 64;  // sequences in one step
  uint32_t max_queued = 1024;
  uint64_t max_queued_tokens = 16u << 20;
  uint32_t step_tokens = 512;  // token rows of one step
  uint32_t score_rows = 32;    // logits rows of one step
  uint32_t token_ms = 150;     // bound for the time between an interactive answer's tokens, to which prompts are cut
                               // (step_budget.h); 0: none
  uint32_t batch_percent = 6;  // of places and rows that batch requests keep beside interactive ones
  uint32_t running_per_user = 0, queued_per_user = 0;    // 0: as many as there are
  std::vector<std::pair<uint32_t, uint32_t>> weights{};  // of users (uid, weight); others have 1
};

/// Why a token of a prompt was computed: client/PROTOCOL.md, `recomputed`.
enum class Reason : uint8_t {
  fresh,
  last_token,
  logits_needed,
  evicted,
  name_space,
  fingerprint,
  retokenised,
  unsealed
};
inline constexpr size_t kReasons = 8;

struct RequestStats {
  uint32_t prompt_tokens = 0, cached_tokens = 0, completion_tokens = 0;
  uint32_t disk_tokens = 0;                     // of cached_tokens: read from disk
  std::array<uint32_t, kReasons> recomputed{};  // by Reason; with cached_tokens all of the prompt that was dealt with
  double queue_ms = 0, ttft_ms = 0, total_ms = 0, prefill_ms = 0, decode_ms = 0;
  std::optional<shm::PageStore::Pin> pin;  // what came of EngineRequest::pin
};

/// Whose fault it is that a request has failed; `memory`: the machine lacks it at present.
enum class Fault : uint8_t { daemon, model, memory };

/// What a request tells its owner. Called on the engine thread; must not block (post and return). Exactly one of
/// on_done and on_failed comes, last. An end token is neither reported nor counted.
struct RequestEvents {
  std::function<void(const model::Sampled&)> on_token;
  std::function<void(uint32_t first, const std::vector<float>& log_probs,
                     const std::vector<std::vector<std::pair<uint32_t, float>>>& top)>
      on_score;
  std::function<void(Finish, const RequestStats&)> on_done;
  std::function<void(Fault, const std::string&)> on_failed;
};

struct EngineRequest {
  std::string model;                             // a loaded model's name
  std::shared_ptr<const model::Model> expected;  // the tokens were made for it; null: any model of that name
  std::vector<uint32_t> tokens;
  uint32_t retokenised_until = 0;  // tokens before this one may be stored under other ids
  model::SamplingParams sampling;
  bool want_logprobs = false;
  uint32_t max_tokens = 0;  // 0: what the context leaves
  bool ignore_eos = false;
  std::optional<uint64_t> name_space = {};    // that it uses; absent: its user's own
  std::vector<uint64_t> usable_namespaces{};  // besides: what they have is told
  bool pin = false;                           // the prompt's pages stay: RequestStats::pin
  bool score = false;                         // log-probabilities of the tokens themselves; nothing is generated
  uint32_t score_top = 0;
  Priority priority = Priority::interactive;
  /// When it ends within a step, wherever it is, with what there is of it; one in the past: as soon as it is seen.
  std::optional<std::chrono::steady_clock::time_point> deadline;
  uint32_t uid = 0, pid = 0;
  std::string kind;  // for `ps`: generate | chat | score | warm
  RequestEvents events;
};

enum class Refusal : uint8_t { none, queue_full, unknown_model, too_long, empty, stopping, bad_token };

struct RequestRow {  // for `status`
  RequestId id;
  uint32_t uid, pid;
  std::string model, kind, state;                          // queued | prefill | decode | preempted
  uint32_t prompt_tokens, done_tokens, completion_tokens;  // done: of prompt and answer, with K and V
  double age_ms;
  Priority priority = Priority::interactive;
  std::optional<double> deadline_left_ms;  // negative: about to end
  uint32_t preemptions = 0;
};

struct ModelRow {
  std::shared_ptr<const model::Model> model;
  std::string name, kv_type;
  uint32_t pages, free_pages, cached_pages;  // cached: hold tokens and are used by nobody
  uint32_t context = 0;
  bool locked = false;          // the KV pages
  uint64_t promised_bytes = 0;  // of KV, and of buffers for the disk, that have no memory yet
};

struct EngineCounters {
  uint64_t served = 0, prompt_tokens = 0, cached_tokens = 0, completion_tokens = 0, steps = 0;
  uint32_t running = 0, queued = 0;
  double step_age_ms = 0;  // how long the present step has been running; 0 between steps
  std::array<uint32_t, kPriorities> running_by{}, queued_by{};  // by Priority; together `running` and `queued`
  // Steps: all of them so far, and the last one. Rows are tokens run: a prompt's or an answer's.
  uint64_t prefill_rows = 0, decode_rows = 0;
  uint64_t kv_bytes_read = 0;  // by attention; pages that sequences of a step share count once
  double steps_ms = 0, last_step_ms = 0, mean_step_ms = 0;  // mean: of about the last 16
  uint32_t last_step_sequences = 0, last_prefill_rows = 0, last_decode_rows = 0;
  uint64_t preemptions = 0, cancelled = 0, deadline_ends = 0, failed = 0, busy_refusals = 0;
};

/// What a model's KV pages are to be: shm/kv_pages.h has the details.
struct KvSetup {
  shm::KvTypes type = shm::KvType::f16;
  uint64_t tokens = 0;                                  // that new pages hold
  uint64_t least_tokens = 0, most_tokens = UINT64_MAX;  // that pages of an earlier process may hold
  uint32_t context = 0;
  bool lock = false;  // in memory; a failure shows in ModelRow::locked
  shm::ShareOptions shares;
  std::string fingerprint, segment_name;
  int segment_fd = -1;
  std::shared_ptr<DiskTier> disk;                 // or null; the fingerprint then says all
  std::function<void(uint32_t pages)> on_damage;  // cached pages of an earlier process were bad; engine thread
};

/// What they are then.
struct KvState {
  bool taken_over = false;
  std::string refused;      // why an earlier process's pages are gone, if they are
  uint32_t kept_pages = 0;  // that hold tokens
  uint64_t tokens = 0;      // that all pages hold
  int fd = -1;              // of the segment
};

class Engine {
 public:
  using Now = std::chrono::steady_clock::time_point (*)();
  /// Called on the engine thread when callbacks may have run and before it does anything long: once a step. Must not
  /// throw. False: it is to be called again soon.
  using Delivered = std::function<bool()>;
  /// `now`: any thread calls it; tests bring their own.
  Engine(const kernels::KernelSet& kernels, runtime::WorkerPool& pool, const EngineLimits& limits,
         Now now = &std::chrono::steady_clock::now, Delivered delivered = nullptr);
  ~Engine();  // cancels what is left and joins the thread

  /// Makes a model servable. Any thread. Throws model::LoadError (no memory, or the name is taken).
  KvState add_model(const std::string& name, std::shared_ptr<const model::Model> model, const KvSetup& kv);
  /// The same for whatever runs steps. Returns how many of its pages hold tokens of an earlier process.
  uint32_t add_servable(const std::string& name, Servable servable);
  /// Refuses new requests for it, finishes the running ones as `cancelled`, frees the pages; returns when that is done
  /// (a step at most; not from a callback). False: not loaded.
  bool remove_model(const std::string& name);
  std::vector<ModelRow> models() const;
  /// The context a request of this model may use, 0 if it is not loaded.
  uint32_t context(const std::string& name) const;

  struct Submitted {
    Refusal refusal = Refusal::none;
    RequestId id = 0;
    uint32_t retry_after_ms = 0;  // queue_full: when there may be room
  };
  /// Any thread; never blocks on a step.
  Submitted submit(EngineRequest request);
  /// Ends a request within one step, in any phase; on_done(cancelled) follows. Unknown ids are ignored.
  void cancel(RequestId id);
  /// The same with on_done(stop): the text so far contains a stop string. Tokens may still come that were on their way.
  void finish_early(RequestId id);

  /// Any thread. Runs before the next step; what a job wants of a model that is not loaded is nothing.
  void visit_caches(CacheJob job);

  const EngineLimits& limits() const;
  std::vector<RequestRow> requests() const;
  EngineCounters counters() const;
  /// Refuses new requests; true when all have ended before `timeout_ms`.
  bool drain(uint32_t timeout_ms);

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace ellm::serve
