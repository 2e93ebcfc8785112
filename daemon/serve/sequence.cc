// See sequence.h.
#include "daemon/serve/sequence.h"

#include <algorithm>
#include <new>

namespace ellm::serve {
namespace {

double ms_between(Clock::time_point from, Clock::time_point to) {
  return std::chrono::duration<double, std::milli>(to - from).count();
}

const char* name_of(Phase phase) {
  switch (phase) {
    case Phase::queued: return "queued";
    case Phase::prefill: return "prefill";
    case Phase::decode: return "decode";
    case Phase::preempted: return "preempted";
  }
  return "";
}

}  // namespace

Sequence::Sequence(RequestId number, EngineRequest&& r, uint32_t limit_tokens, const kernels::KernelSet& kernels,
                   uint32_t weight, Clock::time_point now)
    : id(number), request(std::move(r)), sampler(request.sampling, kernels), tokens(std::move(request.tokens)),
      prompt_tokens(static_cast<uint32_t>(tokens.size())), limit(limit_tokens), prefill_end(prompt_tokens),
      name_space(request.name_space.value_or(shm::namespace_of_uid(request.uid))), submitted(now) {
  Account& account = spare_account.emplace_back();
  account.uid = request.uid;
  account.priority = request.priority;
  account.weight = weight;
  if (!request.score) {
    for (uint32_t token : tokens) sampler.accept_prompt(token);
  }
}

void Sequence::count_computed(uint32_t rows) {
  const uint32_t end = std::min(computed + rows, prompt_tokens);
  uint32_t at = std::max(computed, counted);
  const auto count = [&](uint32_t until, Reason reason) {
    until = std::min(until, end);
    if (until <= at) return;
    recomputed[static_cast<size_t>(reason)] += until - at;
    at = until;
  };
  count(logits_until, Reason::logits_needed);
  count(namespace_until, Reason::name_space);
  count(evicted_until, Reason::evicted);
  count(unsealed_until, Reason::unsealed);
  count(request.retokenised_until, Reason::retokenised);
  count(last_is_stored ? prompt_tokens - 1 : prompt_tokens, Reason::fresh);
  count(prompt_tokens, Reason::last_token);
  counted = std::max(counted, end);
}

void Sequence::rewind() {
  computed = sealed_pages = 0;
  prefill_end = static_cast<uint32_t>(tokens.size());
  logits_until = namespace_until = evicted_until = unsealed_until = 0;
  done.store(0, std::memory_order_relaxed);
}

void Sequence::end(Ending how) {
  Ending none = Ending::none;
  ending.compare_exchange_strong(none, how, std::memory_order_relaxed);
}

void Sequence::tell_end(const char* why, Fault fault) noexcept {
  try {
    if (failed && request.events.on_failed) request.events.on_failed(fault, why);
    if (!failed && request.events.on_done) request.events.on_done(finish, final_stats);
  } catch (const std::bad_alloc&) {
    return;
  } catch (...) {
  }
  told = true;
  request.events = {};
}

RequestStats Sequence::stats(Clock::time_point now) const {
  constexpr Clock::time_point kNever{};
  RequestStats s;
  s.prompt_tokens = prompt_tokens;
  s.cached_tokens = cached_tokens;
  s.disk_tokens = disk_tokens;
  s.recomputed = recomputed;
  s.pin = pin;
  s.completion_tokens = completion.load(std::memory_order_relaxed);
  s.total_ms = ms_between(submitted, now);
  s.queue_ms = admitted == kNever ? s.total_ms : ms_between(submitted, admitted);
  if (admitted != kNever) s.prefill_ms = ms_between(admitted, first_token == kNever ? now : first_token);
  if (first_token != kNever) {
    s.ttft_ms = ms_between(submitted, first_token);
    s.decode_ms = ms_between(first_token, last_token);
  }
  return s;
}

RequestRow Sequence::row(Clock::time_point now) const {
  return {id,
          request.uid,
          request.pid,
          request.model,
          request.kind,
          name_of(phase.load(std::memory_order_relaxed)),
          prompt_tokens,
          done.load(std::memory_order_relaxed),
          completion.load(std::memory_order_relaxed),
          ms_between(submitted, now),
          request.priority,
          request.deadline ? std::optional(ms_between(now, *request.deadline)) : std::nullopt,
          preemptions.load(std::memory_order_relaxed)};
}

}  // namespace ellm::serve
