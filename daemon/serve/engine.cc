// See engine.h. One mutex guards what other threads touch: the requests' directory, the queues' heads and the limits.
// The engine thread holds it only between steps, for as long as it takes to move pointers, so nobody waits for a step.
#include "daemon/serve/engine.h"

#include <algorithm>
#include <condition_variable>
#include <map>
#include <mutex>
#include <thread>
#include <utility>

#include "daemon/serve/cache_job.h"
#include "daemon/serve/model_queue.h"
#include "daemon/serve/queue_pace.h"
#include "daemon/serve/servable.h"

namespace ellm::serve {
namespace {

constexpr auto kNever = Clock::time_point::max();
constexpr std::chrono::seconds kFlush{5};            // that writing prefixes to disk may hold up the end
constexpr std::chrono::milliseconds kTellAgain{20};  // where an owner had no memory for a request's end

}  // namespace

struct Engine::Impl : ModelQueue::Listener {
  Impl(const kernels::KernelSet& k, runtime::WorkerPool& p, const EngineLimits& l, Now n, Delivered d)
      : kernels(k), pool(p), limits(l), now(n), delivered(std::move(d)) {}

  struct Entry {
    std::unique_ptr<ModelQueue> queue;
    bool removing = false;
  };

  const kernels::KernelSet& kernels;
  runtime::WorkerPool& pool;
  const EngineLimits limits;
  const Now now;
  const Delivered delivered;

  mutable std::mutex mutex;
  std::condition_variable wake;             // the engine thread: there is something to do
  mutable std::condition_variable changed;  // the others: a model went, a request ended
  std::map<std::string, Entry> models;
  std::map<RequestId, std::shared_ptr<Sequence>> requests;
  SequenceList incoming;
  CacheJobs new_jobs;
  SequenceList untold_ends;  // the engine thread's
  CacheJobs jobs;            // too
  bool undelivered = false;  // too: delivered() is to be called again
  bool ending_raised = false, stopping = false, quit = false, poked = false;
  RequestId next_id = 1;
  uint64_t queued_tokens = 0;
  struct User {
    uint32_t requests = 0, queued = 0;
  };
  std::map<uint32_t, User> users;  // with unfinished requests
  QueuePace pace;
  EngineCounters counters;
  Clock::time_point step_start{};
  std::thread thread;

  void admitted(Sequence& sequence) override {
    std::lock_guard lock(mutex);
    leave_queue(sequence);
    count_running(sequence, +1);
  }

  void preempted(Sequence& sequence) override {
    std::lock_guard lock(mutex);
    count_running(sequence, -1);
    enter_queue(sequence);
    ++counters.preemptions;
  }

  void ended(Sequence& sequence) override {
    std::lock_guard lock(mutex);
    leave_queue(sequence);
    if (!waits(sequence.phase.load(std::memory_order_relaxed))) count_running(sequence, -1);
    const auto user = users.find(sequence.request.uid);
    if (--user->second.requests == 0) users.erase(user);
    ++ends_of(sequence);
    counters.prompt_tokens += sequence.counted;
    counters.cached_tokens += sequence.cached_tokens;
    counters.completion_tokens += sequence.completion.load(std::memory_order_relaxed);
    requests.erase(sequence.id);
    if (requests.empty()) changed.notify_all();
  }

  void stepped(const StepReport& step) override {
    constexpr double kShareOfMean = 1.0 / 16;
    std::lock_guard lock(mutex);
    counters.prefill_rows += step.prefill_rows;
    counters.decode_rows += step.decode_rows;
    counters.kv_bytes_read += step.kv_bytes_read;
    counters.steps_ms += step.ms;
    counters.mean_step_ms += (step.ms - counters.mean_step_ms) * (counters.last_step_ms == 0 ? 1 : kShareOfMean);
    counters.last_step_ms = step.ms;
    counters.last_step_sequences = step.sequences;
    counters.last_prefill_rows = step.prefill_rows;
    counters.last_decode_rows = step.decode_rows;
  }

  void untold(SequenceList& from, SequenceList::iterator sequence) override {
    untold_ends.splice(untold_ends.end(), from, sequence);
  }

  // Under the mutex.
  void enter_queue(Sequence& sequence);
  void leave_queue(Sequence& sequence);
  void count_queued(const Sequence& sequence, int change);
  void count_running(const Sequence& sequence, int change);
  uint64_t& ends_of(const Sequence& sequence);
  bool fills_own_queue(uint32_t uid) const;

  Refusal refuse(const EngineRequest& request, uint32_t& limit) const;
  Submitted refused(Refusal refusal, uint32_t uid);
  uint32_t weight_of(uint32_t uid) const;
  void end(RequestId id, Sequence::Ending how);
  void loop();
  bool take(bool idle, Clock::time_point next);
  void poke();
  Neighbours survey() const;
  void hand_over();
  ModelQueue* queue_after(const ModelQueue* last) const;
  ModelQueue* marked();
  void remove_marked();
  void tell_again();
  void deliver() { undelivered = delivered && !delivered(); }
  void run_jobs();
  void run_job(CacheJob& job);
};

void Engine::Impl::enter_queue(Sequence& sequence) {
  sequence.in_queue = true;
  count_queued(sequence, +1);
}

/// Does nothing where it has left already.
void Engine::Impl::leave_queue(Sequence& sequence) {
  if (!std::exchange(sequence.in_queue, false)) return;
  pace.left(now());
  count_queued(sequence, -1);
}

void Engine::Impl::count_queued(const Sequence& sequence, int change) {
  counters.queued += static_cast<uint32_t>(change);
  counters.queued_by[static_cast<size_t>(sequence.request.priority)] += static_cast<uint32_t>(change);
  queued_tokens += static_cast<uint64_t>(change) * sequence.prompt_tokens;
  users.find(sequence.request.uid)->second.queued += static_cast<uint32_t>(change);
}

void Engine::Impl::count_running(const Sequence& sequence, int change) {
  counters.running += static_cast<uint32_t>(change);
  counters.running_by[static_cast<size_t>(sequence.request.priority)] += static_cast<uint32_t>(change);
}

uint64_t& Engine::Impl::ends_of(const Sequence& sequence) {
  if (sequence.failed) return counters.failed;
  if (sequence.finish == Finish::deadline) return counters.deadline_ends;
  return sequence.finish == Finish::cancelled ? counters.cancelled : counters.served;
}

bool Engine::Impl::fills_own_queue(uint32_t uid) const {
  const auto user = users.find(uid);
  return limits.queued_per_user != 0 && user != users.end() && user->second.queued >= limits.queued_per_user;
}

/// Under the mutex. `limit`: tokens at which the request will end.
Refusal Engine::Impl::refuse(const EngineRequest& request, uint32_t& limit) const {
  if (stopping || quit) return Refusal::stopping;
  const auto found = models.find(request.model);
  if (found == models.end() || found->second.removing) return Refusal::unknown_model;
  const Servable& servable = found->second.queue->servable();
  if (request.expected && request.expected != servable.model) return Refusal::unknown_model;  // loaded anew meanwhile
  const uint64_t tokens = request.tokens.size();
  if (tokens == 0) return Refusal::empty;
  if (tokens + (request.score ? 0 : 1) > servable.context) return Refusal::too_long;
  if (queued_tokens + tokens > limits.max_queued_tokens) return Refusal::queue_full;
  const bool follows = request.sampling.sample_index != 0;  // where a request's first sample may wait, the others may
  if (!follows && (counters.queued >= limits.max_queued || fills_own_queue(request.uid))) return Refusal::queue_full;
  const uint64_t wanted = request.max_tokens == 0 ? servable.context : tokens + request.max_tokens;
  limit = static_cast<uint32_t>(std::min<uint64_t>(wanted, servable.context));
  return Refusal::none;
}

/// Under the mutex. A user whose own queue is full waits for its part of those that leave.
Engine::Submitted Engine::Impl::refused(Refusal refusal, uint32_t uid) {
  if (refusal != Refusal::queue_full) return {refusal, 0};
  ++counters.busy_refusals;
  uint32_t ahead = counters.queued;
  if (fills_own_queue(uid)) ahead = std::max(ahead, 8 * (counters.queued / users.find(uid)->second.queued));
  return {refusal, 0, pace.retry_after_ms(ahead, now())};
}

uint32_t Engine::Impl::weight_of(uint32_t uid) const {
  for (const auto& [user, weight] : limits.weights) {
    if (user == uid) return std::max(1u, weight);
  }
  return 1;
}

void Engine::Impl::end(RequestId id, Sequence::Ending how) {
  std::lock_guard lock(mutex);
  const auto found = requests.find(id);
  if (found == requests.end()) return;
  found->second->end(how);
  leave_queue(*found->second);  // its place is free at once; the engine thread sees it within a step
  ending_raised = true;
  wake.notify_one();
}

/// Something has been read or written. Any thread.
void Engine::Impl::poke() {
  std::lock_guard lock(mutex);
  poked = true;
  wake.notify_one();
}

/// Waits for work if `idle`, or until `next`, then hands the queues what came in since the last step. False: the engine
/// ends.
bool Engine::Impl::take(bool idle, Clock::time_point next) {
  std::unique_lock lock(mutex);
  step_start = {};
  const auto removing = [&] {
    return std::any_of(models.begin(), models.end(), [](const auto& m) { return m.second.removing; });
  };
  const auto work = [&] {
    return quit || ending_raised || poked || !incoming.empty() || !new_jobs.empty() || removing();
  };
  if (!untold_ends.empty() || !jobs.empty() || undelivered) next = std::min(next, Clock::now() + kTellAgain);
  if (idle && next == kNever) wake.wait(lock, work);
  if (idle && next != kNever) wake.wait_until(lock, next, work);
  ending_raised = poked = false;
  hand_over();
  jobs.splice(jobs.end(), new_jobs);
  return !quit;
}

/// Under the mutex: what came in goes to its model's queue.
void Engine::Impl::hand_over() {
  while (!incoming.empty()) {
    models.at(incoming.front()->request.model).queue->enqueue(incoming, incoming.begin());
  }
}

/// The next model by name, the first one after null; null after the last. The engine thread alone removes models, so
/// what it is given here stays.
ModelQueue* Engine::Impl::queue_after(const ModelQueue* last) const {
  std::lock_guard lock(mutex);
  const auto found = last ? models.upper_bound(last->name()) : models.begin();
  return found == models.end() ? nullptr : found->second.queue.get();
}

ModelQueue* Engine::Impl::marked() {
  std::lock_guard lock(mutex);
  hand_over();  // what was submitted since take(), before the model was marked, ends with it
  const auto found = std::find_if(models.begin(), models.end(), [](const auto& m) { return m.second.removing; });
  return found == models.end() ? nullptr : found->second.queue.get();
}

void Engine::Impl::remove_marked() {
  while (ModelQueue* queue = marked()) {
    queue->end_all(Finish::cancelled);
    std::unique_lock lock(mutex);
    auto gone = models.extract(queue->name());
    lock.unlock();
    gone = decltype(gone)();  // frees the pages before remove_model returns
    changed.notify_all();
  }
}

void Engine::Impl::tell_again() {
  untold_ends.remove_if([](const auto& sequence) {
    sequence->tell_end(kNoMemory, Fault::memory);
    return sequence->told;
  });
}

/// Those that were handed over; one whose owner had no memory to hear of its end stays.
void Engine::Impl::run_jobs() {
  jobs.remove_if([this](CacheJob& job) {
    if (!job.ran) run_job(job);
    job.ran = true;
    try {
      job.done(job.failure);
    } catch (const std::bad_alloc&) {
      return false;
    }
    return true;
  });
}

void Engine::Impl::run_job(CacheJob& job) {
  try {
    for (ModelQueue* queue = nullptr; (queue = queue_after(queue));) {
      if (job.model.empty() || job.model == queue->name()) queue->visit_cache(job);
    }
  } catch (const std::bad_alloc&) {
    job.failure = kNoMemory;
  }
}

/// Whom one model's step holds up of all of them.
Neighbours Engine::Impl::survey() const {
  Neighbours all{0, Urgency::nobody};
  for (ModelQueue* queue = nullptr; (queue = queue_after(queue));) {
    all.running_models += queue->has_running();
    all.urgency = std::max(all.urgency, queue->urgency());
  }
  return all;
}

void Engine::Impl::loop() {
  Clock::time_point next = kNever;
  for (bool idle = true; take(idle, next);) {
    tell_again();
    remove_marked();
    run_jobs();
    deliver();
    idle = true;
    next = kNever;
    const Neighbours neighbours = survey();
    for (ModelQueue* queue = nullptr; (queue = queue_after(queue));) {  // the models take turns, a step each
      queue->sweep_and_admit();
      deliver();
      if (const auto at = queue->tend_disk()) next = std::min(next, *at);
      if (!queue->has_running()) continue;
      {
        std::lock_guard lock(mutex);
        step_start = now();
        ++counters.steps;
      }
      if (queue->step(neighbours)) idle = false;
      deliver();
    }
  }
  for (ModelQueue* queue = nullptr; (queue = queue_after(queue));) queue->end_all(Finish::cancelled);
  tell_again();
  run_jobs();
  deliver();
  const auto until = Clock::now() + kFlush;
  for (ModelQueue* queue = nullptr; (queue = queue_after(queue));) queue->flush_disk(until);
}

Engine::Engine(const kernels::KernelSet& kernels, runtime::WorkerPool& pool, const EngineLimits& limits, Now now,
               Delivered delivered)
    : impl_(std::make_unique<Impl>(kernels, pool, limits, now, std::move(delivered))) {
  impl_->thread = std::thread([this] { impl_->loop(); });
}

Engine::~Engine() {
  {
    std::lock_guard lock(impl_->mutex);
    impl_->quit = true;
    impl_->wake.notify_one();
  }
  impl_->thread.join();
}

KvState Engine::add_model(const std::string& name, std::shared_ptr<const model::Model> model, const KvSetup& kv) {
  Servable servable = make_servable(name, std::move(model), kv, impl_->kernels, impl_->pool, impl_->limits);
  KvState state{servable.kv->taken_over(), servable.kv->refused(), 0,
                uint64_t{servable.kv->total_pages()} * shm::kPageTokens, servable.kv->fd()};
  state.kept_pages = add_servable(name, std::move(servable));
  return state;
}

uint32_t Engine::add_servable(const std::string& name, Servable servable) {
  const uint64_t kv_tokens = uint64_t{servable.kv->total_pages()} * shm::kPageTokens;
  servable.context = static_cast<uint32_t>(std::min<uint64_t>(servable.context, kv_tokens));
  if (servable.disk_tier) {
    servable.disk = DiskPages::make(servable.disk_tier, servable.fingerprint, *servable.kv, impl_->limits.max_running,
                                    [this] { impl_->poke(); });
  }
  auto queue = std::make_unique<ModelQueue>(name, std::move(servable), impl_->limits, impl_->kernels, impl_->pool,
                                            impl_->now, *impl_);
  const uint32_t cached = queue->cached_pages();
  std::lock_guard lock(impl_->mutex);
  if (!impl_->models.try_emplace(name, Impl::Entry{std::move(queue)}).second) {
    throw model::LoadError("a model named '" + name + "' is loaded already");
  }
  return cached;
}

bool Engine::remove_model(const std::string& name) {
  std::unique_lock lock(impl_->mutex);
  const auto found = impl_->models.find(name);
  if (found == impl_->models.end() || found->second.removing) return false;
  found->second.removing = true;
  impl_->wake.notify_one();
  impl_->changed.wait(lock, [&] { return !impl_->models.contains(name); });
  return true;
}

std::vector<ModelRow> Engine::models() const {
  std::vector<ModelRow> rows;
  std::lock_guard lock(impl_->mutex);
  for (const auto& [name, entry] : impl_->models) {
    const ModelQueue& queue = *entry.queue;
    rows.push_back({queue.servable().model, name, queue.servable().kv_type, queue.pages(), queue.free_pages(),
                    queue.cached_pages(), queue.servable().context, queue.kv_locked(), queue.promised_bytes()});
  }
  return rows;
}

uint32_t Engine::context(const std::string& name) const {
  std::lock_guard lock(impl_->mutex);
  const auto found = impl_->models.find(name);
  return found == impl_->models.end() ? 0 : found->second.queue->servable().context;
}

Engine::Submitted Engine::submit(EngineRequest request) {
  uint32_t limit = 0;
  RequestId id = 0;
  uint32_t vocabulary = 0;
  {
    std::lock_guard lock(impl_->mutex);
    const Refusal refusal = impl_->refuse(request, limit);
    if (refusal != Refusal::none) return impl_->refused(refusal, request.uid);
    vocabulary = impl_->models.at(request.model).queue->servable().runner->vocabulary();
    id = impl_->next_id++;
  }
  for (uint32_t token : request.tokens) {
    if (token >= vocabulary) return {Refusal::bad_token, 0};
  }
  const uint32_t weight = impl_->weight_of(request.uid);
  auto sequence = std::make_shared<Sequence>(id, std::move(request), limit, impl_->kernels, weight,
                                             impl_->now());  // reads the whole prompt
  SequenceList one{sequence};
  std::lock_guard lock(impl_->mutex);
  // Asked again: another thread may have filled the queue, removed the model or changed its context meanwhile.
  std::swap(sequence->request.tokens, sequence->tokens);
  const Refusal refusal = impl_->refuse(sequence->request, sequence->limit);
  std::swap(sequence->request.tokens, sequence->tokens);
  const uint32_t uid = sequence->request.uid;
  if (refusal != Refusal::none) return impl_->refused(refusal, uid);
  impl_->requests.emplace(id, sequence);
  try {
    ++impl_->users[uid].requests;
  } catch (...) {
    impl_->requests.erase(id);
    throw;
  }
  impl_->incoming.splice(impl_->incoming.end(), one);  // from here on nothing can fail
  impl_->enter_queue(*sequence);
  impl_->wake.notify_one();
  return {Refusal::none, id};
}

void Engine::cancel(RequestId id) { impl_->end(id, Sequence::Ending::cancel); }
void Engine::finish_early(RequestId id) { impl_->end(id, Sequence::Ending::stop); }

void Engine::visit_caches(CacheJob job) {
  CacheJobs one;
  one.push_back(std::move(job));
  std::lock_guard lock(impl_->mutex);
  impl_->new_jobs.splice(impl_->new_jobs.end(), one);
  impl_->wake.notify_one();
}

const EngineLimits& Engine::limits() const { return impl_->limits; }

std::vector<RequestRow> Engine::requests() const {
  std::vector<RequestRow> rows;
  const auto now = impl_->now();
  std::lock_guard lock(impl_->mutex);
  rows.reserve(impl_->requests.size());
  for (const auto& [id, sequence] : impl_->requests) rows.push_back(sequence->row(now));
  return rows;
}

EngineCounters Engine::counters() const {
  std::lock_guard lock(impl_->mutex);
  EngineCounters counters = impl_->counters;
  if (impl_->step_start != Clock::time_point{}) {
    counters.step_age_ms = std::chrono::duration<double, std::milli>(impl_->now() - impl_->step_start).count();
  }
  return counters;
}

bool Engine::drain(uint32_t timeout_ms) {
  std::unique_lock lock(impl_->mutex);
  impl_->stopping = true;
  return impl_->changed.wait_for(lock, std::chrono::milliseconds(timeout_ms), [&] { return impl_->requests.empty(); });
}

}  // namespace ellm::serve
