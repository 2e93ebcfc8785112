// See model_queue.h.
#include "daemon/serve/model_queue.h"

#include <algorithm>
#include <cmath>
#include <new>
#include <stdexcept>

#include "daemon/serve/cache_job.h"

namespace ellm::serve {
namespace {

constexpr std::chrono::milliseconds kDiskWait{10};  // until a request that waits for the disk is looked at

EngineLimits fit(EngineLimits limits, const StepRunner& runner) {
  limits.step_tokens = std::max(1u, std::min(limits.step_tokens, runner.max_rows()));
  limits.max_running = std::max(1u, std::min({limits.max_running, limits.step_tokens, runner.max_logits()}));
  // At worst one request scores and each of the others takes a row of logits.
  limits.score_rows = std::max(1u, std::min(limits.score_rows, runner.max_logits() - limits.max_running + 1));
  return limits;
}

shm::ShareOptions page_shares(shm::ShareOptions options, const EngineLimits& limits) {
  for (const auto& [uid, weight] : limits.weights) options.weights.emplace_back(shm::namespace_of_uid(uid), weight);
  return options;
}

/// A step gave NaN.
struct NoNumbers : std::runtime_error {
  NoNumbers()
      : std::runtime_error("the model computes no numbers (NaN): its file is damaged, or was badly converted") {}
};

/// The natural log-probabilities of `next` (if there is one) and of the `count` best tokens, ties by the lower id.
void score_row(std::span<const float> logits, std::optional<uint32_t> next, uint32_t count,
               const kernels::KernelSet& kernels, float& log_prob, std::vector<std::pair<uint32_t, float>>& top) {
  const float total = kernels.log_sum_exp(logits.data(), static_cast<uint32_t>(logits.size()));
  if (!std::isfinite(total)) throw NoNumbers();
  if (next) log_prob = logits[*next] - total;
  count = std::min<uint32_t>(count, static_cast<uint32_t>(logits.size()));
  if (count == 0) return;
  std::vector<uint32_t> ids(logits.size());
  for (uint32_t i = 0; i < ids.size(); ++i) ids[i] = i;
  const auto better = [&](uint32_t a, uint32_t b) { return logits[a] != logits[b] ? logits[a] > logits[b] : a < b; };
  std::nth_element(ids.begin(), ids.begin() + (count - 1), ids.end(), better);
  std::sort(ids.begin(), ids.begin() + count, better);
  for (uint32_t i = 0; i < count; ++i) top.emplace_back(ids[i], logits[ids[i]] - total);
}

}  // namespace

ModelQueue::ModelQueue(const std::string& name, Servable servable, const EngineLimits& limits,
                       const kernels::KernelSet& kernels, runtime::WorkerPool& pool, Engine::Now now,
                       Listener& listener)
    : name_(name), servable_(std::move(servable)), limits_(fit(limits, *servable_.runner)), kernels_(kernels),
      pool_(pool), now_(now), listener_(listener), total_pages_(servable_.kv->total_pages()),
      kv_locked_(servable_.kv->locked()),
      cache_(*servable_.kv, page_shares(servable_.shares, limits), servable_.disk.get()),
      free_pages_(servable_.kv->free_pages()), admission_(limits_, cache_, shares_, running_, *this),
      plan_(limits_, cache_, shares_) {
  chunks_.reserve(limits_.max_running);
  rows_.reserve(limits_.max_running + limits_.score_rows);
  drawn_.reserve(limits_.max_running + limits_.score_rows);
  publish_pages();
}

ModelQueue::~ModelQueue() = default;

void ModelQueue::sweep(SequenceList& sequences) {
  const auto now = now_();
  for (const auto& sequence : sequences) {
    const auto ending = sequence->ending.load(std::memory_order_relaxed);
    if (ending != Sequence::Ending::none) {
      finish(*sequence, ending == Sequence::Ending::stop ? Finish::stop : Finish::cancelled);
    } else if (sequence->past_deadline(now)) {
      finish(*sequence, Finish::deadline);
    }
  }
  drop_ended(sequences);
}

void ModelQueue::sweep_and_admit() {
  sweep(running_);
  for (Account& account : shares_.accounts()) sweep(account.waiting);
  admission_.admit();
}

void ModelQueue::admitted(Sequence& sequence) {
  if (sequence.admitted == Clock::time_point{}) sequence.admitted = now_();
  listener_.admitted(sequence);
  sequence.phase.store(Phase::prefill, std::memory_order_relaxed);
}

void ModelQueue::preempted(Sequence& sequence) {
  sequence.phase.store(Phase::preempted, std::memory_order_relaxed);
  publish_pages();
  listener_.preempted(sequence);
}

void ModelQueue::lacked_memory(Sequence& sequence, const std::exception& why) {
  fail(sequence, why);
  drop_ended(sequence.account->waiting);
}

/// Gives every piece the pages that it writes. Reserved pages can still lack memory behind them: the request waits then
/// until another has ended, and fails where it runs alone.
void ModelQueue::allocate_pages() {
  std::erase_if(plan_.pieces(), [this](const Piece& piece) {
    if (cache_.make_room(*piece.sequence, piece.rows)) return false;
    if (running_.size() > 1) {
      admission_.give_back(*piece.sequence);
    } else {
      fail(*piece.sequence, "the machine has no memory left for the request's keys and values", Fault::memory);
    }
    return true;
  });
  publish_pages();
}

/// The account of pages, for other threads.
void ModelQueue::publish_pages() noexcept {
  populated_pages_.store(servable_.kv->populated_pages(), std::memory_order_relaxed);
  free_pages_.store(cache_.pages().free_pages(), std::memory_order_relaxed);
  cached_pages_.store(cache_.pages().cached_pages(), std::memory_order_relaxed);
  const uint32_t damaged = cache_.pages().damaged_pages();
  if (damaged == damaged_pages_) return;
  try {
    if (servable_.on_damage) servable_.on_damage(damaged - damaged_pages_);
    damaged_pages_ = damaged;
  } catch (const std::bad_alloc&) {  // told the next time
  }
}

std::span<const float> ModelQueue::run() {
  chunks_.clear();
  for (const Piece& piece : plan_.pieces()) {
    const Sequence& s = *piece.sequence;
    chunks_.push_back({std::span(s.tokens).subspan(s.computed, piece.rows), s.computed, s.pages, piece.logits});
  }
  return servable_.runner->step(chunks_);
}

/// Rows are independent of each other, so the workers share them.
void ModelQueue::draw(std::span<const float> logits) {
  rows_.clear();
  drawn_.clear();
  for (Piece& piece : plan_.pieces()) {
    piece.first_logits = rows_.size();
    for (uint32_t i = 0; i < piece.logits; ++i) {
      rows_.push_back({&piece, piece.sequence->computed + piece.rows - piece.logits + i + 1});
    }
  }
  drawn_.resize(rows_.size());
  const size_t vocabulary = servable_.runner->vocabulary();
  if (logits.size() < rows_.size() * vocabulary) throw std::runtime_error("the model returned too few logits");
  const auto draw_row = [&](size_t i) { draw_one(rows_[i], logits.subspan(i * vocabulary, vocabulary), drawn_[i]); };
  if (rows_.size() == 1) {
    draw_row(0);
  } else if (!rows_.empty()) {
    pool_.run([&](runtime::Worker& worker) {
      for (uint32_t i = worker.next(); i < rows_.size(); i = worker.next()) draw_row(i);
    });
  }
}

void ModelQueue::draw_one(const Row& row, std::span<const float> logits, Drawn& drawn) {
  Sequence& s = *row.piece->sequence;
  try {
    if (!s.request.score) {
      drawn.sampled = s.sampler.sample(logits, row.position, s.request.want_logprobs);
      if (std::isnan(logits[drawn.sampled.token])) throw NoNumbers();  // only where there is no other token
    } else {
      const auto next = row.position < s.tokens.size() ? std::optional(s.tokens[row.position]) : std::nullopt;
      score_row(logits, next, s.request.score_top, kernels_, drawn.log_prob, drawn.top);
    }
  } catch (...) {
    drawn.failure = std::current_exception();
  }
}

bool ModelQueue::step(const Neighbours& neighbours) {
  plan_.make(running_, neighbours);
  const bool planned = !plan_.pieces().empty();
  allocate_pages();
  if (!plan_.pieces().empty()) run_step();
  drop_ended(running_);
  shares_.settle();
  return planned || !servable_.disk;
}

void ModelQueue::run_step() {
  const auto start = now_();
  try {
    draw(run());
  } catch (const std::exception& e) {
    for (const Piece& piece : plan_.pieces()) fail(*piece.sequence, e);
    return;
  }
  stepped(std::chrono::duration<double, std::milli>(now_() - start).count());
  for (const Piece& piece : plan_.pieces()) {
    Sequence& s = *piece.sequence;
    cache_.commit(s, piece.rows);
    if (s.ending.load(std::memory_order_relaxed) != Sequence::Ending::none) continue;  // swept before the next step
    try {
      deliver(piece, std::span(drawn_).subspan(piece.first_logits, piece.logits));
    } catch (const std::exception& e) {
      fail(s, e);
    }
  }
}

std::optional<Clock::time_point> ModelQueue::tend_disk() noexcept {
  if (!servable_.disk) return std::nullopt;
  const auto now = Clock::now();  // as the tier's own: a disk takes real time, whatever now_ says
  auto next = cache_.tend_disk(now);
  publish_pages();
  const bool waits = std::any_of(running_.begin(), running_.end(), [](const auto& s) { return s->prefilling(); });
  if (waits) next = std::min(next.value_or(Clock::time_point::max()), now + kDiskWait);
  return next;
}

/// Before the pieces are committed.
void ModelQueue::stepped(double step_ms) {
  plan_.took(step_ms);
  const StepLoad load = plan_.load();
  if (servable_.disk) servable_.disk->computed(load.prefill_rows, step_ms);
  for (const Piece& piece : plan_.pieces()) shares_.charge(*piece.sequence->account, piece.rows);
  listener_.stepped({step_ms, static_cast<uint32_t>(plan_.pieces().size()), load.prefill_rows, load.decodes,
                     servable_.runner->kv_bytes_read()});
}

void ModelQueue::deliver(const Piece& piece, std::span<Drawn> rows) {
  Sequence& s = *piece.sequence;
  for (const Drawn& row : rows) {
    if (row.failure) std::rethrow_exception(row.failure);
  }
  if (s.request.score && !rows.empty()) return deliver_score(s, s.computed - piece.rows, rows);
  if (!rows.empty()) deliver_token(s, std::move(rows[0].sampled));
}

void ModelQueue::deliver_token(Sequence& s, model::Sampled sampled) {
  const auto now = now_();
  if (s.first_token == Clock::time_point{}) s.first_token = now;
  s.last_token = now;
  s.phase.store(Phase::decode, std::memory_order_relaxed);
  const uint32_t token = sampled.token;
  if (!s.request.ignore_eos && servable_.is_end(token)) return finish(s, Finish::stop);
  s.sampler.accept(token);
  s.tokens.push_back(token);
  s.completion.fetch_add(1, std::memory_order_relaxed);
  if (s.request.events.on_token) s.request.events.on_token(sampled);
  if (s.tokens.size() >= s.limit) finish(s, Finish::length);
}

/// `first`: the piece's first token. Row i predicts token first + i + 1, so a piece's own first log-probability comes
/// from the piece before.
void ModelQueue::deliver_score(Sequence& s, uint32_t first, std::span<Drawn> rows) {
  std::vector<float> log_probs;
  std::vector<std::vector<std::pair<uint32_t, float>>> top;
  if (s.carried_log_prob) log_probs.push_back(*s.carried_log_prob);
  for (size_t i = 0; i + 1 < rows.size(); ++i) log_probs.push_back(rows[i].log_prob);
  s.carried_log_prob = rows.back().log_prob;
  s.scored = s.computed;
  if (s.request.score_top != 0) {
    for (Drawn& row : rows) top.push_back(std::move(row.top));
  }
  const auto now = now_();
  if (s.first_token == Clock::time_point{}) s.first_token = now;
  s.last_token = now;
  if (s.request.events.on_score) s.request.events.on_score(first, log_probs, top);
  if (!s.prefilling()) finish(s, Finish::stop);
}

/// `keep`: what it computed is sound.
void ModelQueue::leave(Sequence& s, bool keep) noexcept {
  admission_.discharge(s);
  cache_.leave(s, keep);
  publish_pages();
  listener_.ended(s);
}

void ModelQueue::finish(Sequence& s, Finish finish) noexcept {
  s.ended = true;
  s.finish = finish;
  leave(s, true);
  s.final_stats = s.stats(now_());
  s.tell_end(nullptr);
}

void ModelQueue::fail(Sequence& s, const char* why, Fault fault) noexcept {
  if (s.ended) return;
  s.ended = s.failed = true;
  leave(s, false);
  s.tell_end(why, fault);
}

void ModelQueue::fail(Sequence& s, const std::exception& why) noexcept {
  if (dynamic_cast<const std::bad_alloc*>(&why)) return fail(s, kNoMemory, Fault::memory);
  fail(s, why.what(), dynamic_cast<const NoNumbers*>(&why) ? Fault::model : Fault::daemon);
}

void ModelQueue::drop_ended(SequenceList& sequences) noexcept {
  for (auto next = sequences.begin(); next != sequences.end();) {
    const auto sequence = next++;
    if (!(*sequence)->ended) continue;
    if ((*sequence)->told) {
      sequences.erase(sequence);
    } else {
      listener_.untold(sequences, sequence);
    }
  }
}

void ModelQueue::visit_cache(CacheJob& job) {
  job.run(name_, servable_, cache_);
  publish_pages();
}

void ModelQueue::end_all(Finish how) {
  const auto end = [&](SequenceList& sequences) {
    for (const auto& sequence : sequences) finish(*sequence, how);
    drop_ended(sequences);
  };
  end(running_);
  for (Account& account : shares_.accounts()) end(account.waiting);
  shares_.settle();
}

}  // namespace ellm::serve
