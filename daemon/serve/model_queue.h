// One model's requests: those that wait (admission.h), those that run, and the steps that take these on (step_plan.h).
// The engine thread alone calls it, but for what is marked.
#pragma once
#include <atomic>
#include <exception>
#include <memory>
#include <string>
#include <vector>

#include "daemon/serve/admission.h"
#include "daemon/serve/servable.h"
#include "daemon/serve/step_plan.h"

namespace ellm::serve {

struct StepReport {
  double ms = 0;
  uint32_t sequences = 0, prefill_rows = 0, decode_rows = 0;
  uint64_t kv_bytes_read = 0;
};

class ModelQueue : private Admission::Outcome {
 public:
  /// Told when a request leaves the queue for the pages or comes back, and when it has ended (before its callback
  /// runs).
  struct Listener {
    virtual ~Listener() = default;
    virtual void admitted(Sequence& sequence) = 0;
    virtual void preempted(Sequence& sequence) = 0;
    virtual void ended(Sequence& sequence) = 0;
    virtual void stepped(const StepReport& report) = 0;
    /// Takes over an ended request whose owner had no memory for the last word, and tells it again.
    virtual void untold(SequenceList& from, SequenceList::iterator sequence) = 0;
  };

  ModelQueue(const std::string& name, Servable servable, const EngineLimits& limits, const kernels::KernelSet& kernels,
             runtime::WorkerPool& pool, Engine::Now now, Listener& listener);
  ~ModelQueue();

  // Constant after construction, or atomic: any thread.
  const std::string& name() const { return name_; }
  const Servable& servable() const { return servable_; }
  uint32_t pages() const { return total_pages_; }
  uint32_t free_pages() const { return free_pages_.load(std::memory_order_relaxed); }
  uint32_t cached_pages() const { return cached_pages_.load(std::memory_order_relaxed); }
  /// What its KV pages may still take: memory that is promised and not yet used.
  uint64_t promised_bytes() const {
    const uint32_t pages = total_pages_ - populated_pages_.load(std::memory_order_relaxed);
    return pages * servable_.kv->geometry().page_bytes() + (servable_.disk ? servable_.disk->promised_bytes() : 0);
  }
  bool kv_locked() const { return kv_locked_; }

  // None of these throws or needs memory but for the requests themselves: what a step works with is reserved at
  // construction, and a request that lacks memory fails alone.
  void enqueue(SequenceList& from, SequenceList::iterator sequence) { admission_.enqueue(from, sequence); }
  /// Ends what was cancelled or is past its deadline, then admits whom there is room for.
  void sweep_and_admit();
  bool has_running() const { return !running_.empty(); }
  /// Whom a step of its running requests would hold up.
  Urgency urgency() const { return StepPlan::urgency_of(running_); }
  /// One step over the running requests. False: all of them wait for the disk.
  bool step(const Neighbours& neighbours);
  void end_all(Finish finish);
  /// Throws what the job does.
  void visit_cache(CacheJob& job);
  /// What the disk tier wants done now; when to come again, absent: when woken.
  std::optional<Clock::time_point> tend_disk() noexcept;
  void flush_disk(Clock::time_point until) noexcept { cache_.flush_disk(until); }

 private:
  struct Row {  // of logits
    const Piece* piece;
    uint32_t position;  // of the token that the row predicts
  };
  struct Drawn {  // what was made of a row of logits
    model::Sampled sampled;
    float log_prob = 0;                           // score: of the token that follows in the text
    std::vector<std::pair<uint32_t, float>> top;  // and the best ones
    std::exception_ptr failure;
  };

  void admitted(Sequence& sequence) override;
  void preempted(Sequence& sequence) override;
  void lacked_memory(Sequence& sequence, const std::exception& why) override;
  void sweep(SequenceList& sequences);
  void allocate_pages();
  void run_step();
  std::span<const float> run();
  void draw(std::span<const float> logits);
  void draw_one(const Row& row, std::span<const float> logits, Drawn& drawn);
  void deliver(const Piece& piece, std::span<Drawn> rows);
  void deliver_token(Sequence& sequence, model::Sampled sampled);
  void deliver_score(Sequence& sequence, uint32_t first, std::span<Drawn> rows);
  void stepped(double step_ms);
  void finish(Sequence& sequence, Finish finish) noexcept;
  void fail(Sequence& sequence, const char* why, Fault fault) noexcept;
  void fail(Sequence& sequence, const std::exception& why) noexcept;
  void leave(Sequence& sequence, bool keep) noexcept;
  void drop_ended(SequenceList& sequences) noexcept;
  void publish_pages() noexcept;

  std::string name_;
  Servable servable_;
  EngineLimits limits_;
  const kernels::KernelSet& kernels_;
  runtime::WorkerPool& pool_;
  const Engine::Now now_;
  Listener& listener_;
  const uint32_t total_pages_;
  const bool kv_locked_;
  PrefixCache cache_;
  uint32_t damaged_pages_ = 0;  // that were told
  std::atomic<uint32_t> free_pages_, cached_pages_{0}, populated_pages_{0};
  FairShares shares_;
  SequenceList running_;
  Admission admission_;
  StepPlan plan_;
  // The present step's.
  std::vector<model::Chunk> chunks_;
  std::vector<Row> rows_;
  std::vector<Drawn> drawn_;
};

}  // namespace ellm::serve
