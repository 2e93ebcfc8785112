// See completion.h.
#include "daemon/completion.h"

#include <algorithm>
#include <utility>

#include "daemon/cache_query.h"
#include "daemon/chat_prompt.h"
#include "daemon/in_pool.h"
#include "daemon/validate.h"

namespace ellm::daemon {
namespace {

using client::ErrorCode;
using client::FinishReason;

constexpr uint32_t kNoMemoryRetryMs = 1000;

model::SamplingParams params_of(const client::Sampling& s) {
  model::SamplingParams p;
  p.temperature = s.temperature;
  p.top_k = s.top_k;
  p.top_p = s.top_p;
  p.min_p = s.min_p;
  p.repetition_penalty = s.repetition_penalty;
  p.presence_penalty = s.presence_penalty;
  p.frequency_penalty = s.frequency_penalty;
  p.seed = s.seed;
  p.logit_bias = s.logit_bias;
  p.logprobs = s.logprobs;
  return p;
}

FinishReason reason_of(serve::Finish finish) {
  switch (finish) {
    case serve::Finish::stop: return FinishReason::stop;
    case serve::Finish::length: return FinishReason::length;
    case serve::Finish::cancelled: return FinishReason::cancelled;
    case serve::Finish::deadline: return FinishReason::deadline;
  }
  return FinishReason::stop;
}

client::Recomputed recomputed_of(const serve::RequestStats& stats) {
  using serve::Reason;
  const auto tokens = [&](Reason reason) { return stats.recomputed[static_cast<size_t>(reason)]; };
  client::Recomputed r;
  r.new_ = tokens(Reason::fresh);
  r.last_token = tokens(Reason::last_token);
  r.logits_needed = tokens(Reason::logits_needed);
  r.evicted = tokens(Reason::evicted);
  r.namespace_ = tokens(Reason::name_space);
  r.fingerprint = tokens(Reason::fingerprint);
  r.retokenised = tokens(Reason::retokenised);
  r.unsealed = tokens(Reason::unsealed);
  return r;
}

/// The engine's refusals in words.
Failure failure_of(const serve::Engine::Submitted& submitted, size_t tokens, const LoadedModel& loaded, bool score) {
  const std::string name = "model '" + loaded.name + "'", what = score ? "the text" : "the prompt";
  switch (submitted.refusal) {
    case serve::Refusal::queue_full:
      return {ErrorCode::busy, "too many requests are waiting; try again later", submitted.retry_after_ms};
    case serve::Refusal::unknown_model: return {ErrorCode::no_such_model, name + " has been unloaded"};
    case serve::Refusal::too_long:
      return {ErrorCode::too_large, what + " has " + std::to_string(tokens) + " tokens; " + name +
                                        " has a context of " + std::to_string(loaded.context) +
                                        (score ? "" : ", prompt and answer together")};
    case serve::Refusal::empty: return {ErrorCode::bad_request, what + " is empty"};
    case serve::Refusal::stopping: return {ErrorCode::shutting_down, "ellmd is shutting down"};
    case serve::Refusal::bad_token: return {ErrorCode::bad_request, what + " has ids outside of the vocabulary"};
    case serve::Refusal::none: break;
  }
  return {ErrorCode::internal, "refused"};
}

Failure failure_of(serve::Fault fault, const std::string& why) {
  switch (fault) {
    case serve::Fault::memory: return {ErrorCode::busy, why, kNoMemoryRetryMs};
    case serve::Fault::model: return {ErrorCode::model_failed, why};
    case serve::Fault::daemon: break;
  }
  return {ErrorCode::internal, why};
}

std::optional<Failure> bad_token(const std::vector<uint32_t>& tokens, const LoadedModel& loaded) {
  const uint32_t vocabulary = loaded.model->config().vocabulary;
  const auto bad = std::find_if(tokens.begin(), tokens.end(), [&](uint32_t token) { return token >= vocabulary; });
  if (bad == tokens.end()) return std::nullopt;
  return Failure{ErrorCode::bad_request, "tokens[" + std::to_string(bad - tokens.begin()) + "] is " +
                                             std::to_string(*bad) + "; model '" + loaded.name +
                                             "' has a vocabulary of " + std::to_string(vocabulary)};
}

/// `warm` has no reply for less than the whole.
client::Message warm_reply(uint32_t id, FinishReason reason, const serve::RequestStats& stats,
                           const client::Usage& usage) {
  if (reason == FinishReason::cancelled) return client::Error{id, ErrorCode::cancelled, "the request was cancelled", 0};
  if (stats.pin && *stats.pin != shm::PageStore::Pin::done) {
    const Failure failure = pin_failure(*stats.pin);
    return client::Error{id, failure.code, failure.message, failure.retry_after_ms};
  }
  client::CacheReply reply;
  reply.id = id;
  reply.usage = usage;
  return reply;
}

/// What the engine has taken of a request; cancelled where the rest of it cannot follow, or nobody would know the ids.
struct Submissions {
  serve::Engine& engine;
  std::vector<serve::RequestId> ids = {};
  ~Submissions() {
    for (const serve::RequestId id : ids) engine.cancel(id);
  }
};

double ms_between(std::chrono::steady_clock::time_point from, std::chrono::steady_clock::time_point to) {
  return std::chrono::duration<double, std::milli>(to - from).count();
}

}  // namespace

Completion::Completion(Services& services, const Peer& peer, std::weak_ptr<Conversation> conversation,
                       CompletionRequest request)
    : services_(services), peer_(peer), conversation_(std::move(conversation)), request_(std::move(request)),
      samples_(request_.samples, Sample{AnswerText(request_.sampling.stop)}), unfinished_(request_.samples) {}

void Completion::start() {
  if (request_.deadline_ms != 0) {
    deadline_ = services_.loop.timer(request_.deadline_ms, [weak = weak_from_this()] {
      if (const auto self = weak.lock()) self->end_early(serve::Finish::deadline);
    });
  }
  services_.registry.resolve(request_.model, [self = shared_from_this()](const Registry::Resolved& resolved) {
    if (self->ended_) return;
    if (const auto* failure = std::get_if<Failure>(&resolved)) return self->fail(*failure);
    const auto loaded = std::get<std::shared_ptr<const LoadedModel>>(resolved);
    in_pool(
        self->services_.pool, self->services_.loop, self->request_.weight,
        [self, loaded] { return self->prepare(loaded); },
        [self](const std::optional<Prepared>& outcome) { self->prepared(outcome); });
  });
}

void Completion::cancel() {
  if (ended_) return;
  if (running_) return cancel_engine();  // it answers; submitted() passes the cancel on
  end_early(serve::Finish::cancelled);
}

/// Before the engine has it.
void Completion::end_early(serve::Finish how) {
  if (ended_ || running_) return;
  cancel_engine();
  for (uint32_t sample = 0; sample < samples_.size(); ++sample) finish({sample, how, {}});
}

// ---- preparation pool -----------------------------------------------------------------------------------------------

Completion::Prepared Completion::prepare(const std::shared_ptr<const LoadedModel>& loaded) {
  if (cancelled_) return {};
  try {
    return submit(loaded);
  } catch (const PromptError& e) {
    return Failure{e.code(), e.what()};
  } catch (const std::bad_alloc&) {
    throw;
  } catch (const std::exception& e) {
    return Failure{ErrorCode::internal, e.what()};
  }
}

Completion::Prepared Completion::submit(const std::shared_ptr<const LoadedModel>& loaded) {
  const client::Sampling& sampling = request_.sampling;
  if (auto fault = fault_of(sampling, loaded->model->config().vocabulary))
    return Failure{ErrorCode::bad_request, *fault};
  Prompt prompt = request_.prompt(*loaded);
  if (auto failure = bad_token(prompt.tokens, *loaded)) return std::move(*failure);
  const auto& tokens = prompt.tokens;
  if (request_.score) score_tokens_ = tokens;
  const bool at_start = !request_.continues_text &&
                        (tokens.empty() || (tokens.size() == 1 && tokens[0] == loaded->model->tokenizer()->bos()));
  for (Sample& sample : samples_) sample.text.begin(loaded->model->tokenizer(), at_start);
  model_name_ = loaded->name;
  submitted_at_ = std::chrono::steady_clock::now();

  const size_t prompt_tokens = tokens.size();
  const serve::EngineRequest request = engine_request(*loaded, std::move(prompt));
  Submissions submissions{services_.engine};
  submissions.ids.reserve(samples_.size());
  for (uint32_t i = 0; i < samples_.size(); ++i) {
    serve::EngineRequest one = request;
    one.sampling.sample_index = i;
    one.events = events(i);
    const auto submitted = services_.engine.submit(std::move(one));
    if (submitted.refusal != serve::Refusal::none) return failure_of(submitted, prompt_tokens, *loaded, request_.score);
    submissions.ids.push_back(submitted.id);
  }
  return std::exchange(submissions.ids, {});
}

serve::EngineRequest Completion::engine_request(const LoadedModel& loaded, Prompt prompt) const {
  const client::Sampling& sampling = request_.sampling;
  serve::EngineRequest request;
  request.model = loaded.name;
  request.expected = loaded.model;
  request.tokens = std::move(prompt.tokens);
  request.retokenised_until = prompt.retokenised_until;
  request.sampling = params_of(sampling);
  request.want_logprobs = sampling.want_logprobs;
  request.max_tokens = sampling.max_tokens;
  request.ignore_eos = sampling.ignore_eos;
  request.score = request_.score;
  request.score_top = request_.score_top;
  request.pin = request_.pin;
  request.name_space = request_.name_space;
  request.usable_namespaces = services_.namespaces.of(peer_);
  request.priority = request_.priority;
  if (request_.deadline_ms != 0) request.deadline = received_ + std::chrono::milliseconds(request_.deadline_ms);
  request.uid = peer_.uid;
  request.pid = peer_.pid;
  request.kind = request_.kind;
  return request;
}

// ---- engine thread --------------------------------------------------------------------------------------------------

template <class F>
void Completion::leave(F&& change) {
  std::lock_guard lock(inbox_mutex_);
  change(inbox_);
  if (posted_) return;
  services_.outbox.add(shared_from_this());
  posted_ = true;
}

serve::RequestEvents Completion::events(uint32_t sample) {
  const auto self = shared_from_this();
  serve::RequestEvents events;
  events.on_token = [self, sample](const model::Sampled& sampled) {
    self->leave([&](Inbox& inbox) { inbox.tokens.push_back({sample, sampled}); });
  };
  events.on_score = [self](uint32_t first, const std::vector<float>& log_probs, const auto& top) {
    self->leave([&](Inbox& inbox) { inbox.scored.push_back({first, log_probs, top}); });
  };
  events.on_done = [self, sample](serve::Finish finish, const serve::RequestStats& stats) {
    self->leave([&](Inbox& inbox) { inbox.ends.push_back({sample, finish, stats}); });
  };
  events.on_failed = [self](serve::Fault fault, const std::string& why) {
    self->leave([&](Inbox& inbox) { inbox.failed = failure_of(fault, why); });
  };
  return events;
}

// ---- I/O thread -----------------------------------------------------------------------------------------------------

void Completion::prepared(const std::optional<Prepared>& outcome) {
  if (!outcome) return fail({ErrorCode::too_large, kNoMemory});
  if (const auto* failure = std::get_if<Failure>(&*outcome)) return fail(*failure);
  if (const auto& ids = std::get<std::vector<serve::RequestId>>(*outcome); !ids.empty()) submitted(ids);
}

void Completion::submitted(const std::vector<serve::RequestId>& ids) {
  running_ = true;
  deadline_.reset();
  for (size_t i = 0; i < ids.size(); ++i) {
    samples_[i].engine_id = ids[i];
    if (samples_[i].text.stopped()) services_.engine.finish_early(ids[i]);
  }
  if (cancelled_) cancel_engine();
}

/// Nobody wants the rest, now or as soon as the engine's numbers are known.
void Completion::cancel_engine() {
  cancelled_ = true;
  for (const Sample& sample : samples_) {
    if (sample.engine_id) services_.engine.cancel(*sample.engine_id);
  }
}

void Completion::collect() {
  try {
    take_inbox();
  } catch (const std::exception& e) {
    fail({ErrorCode::internal, e.what()});
    cancel_engine();
  }
}

void Completion::take_inbox() {
  Inbox inbox;
  {
    std::lock_guard lock(inbox_mutex_);
    std::swap(inbox, inbox_);
    posted_ = false;
  }
  if (ended_) return;
  running_ = true;
  if (!inbox.tokens.empty()) take_tokens(std::move(inbox.tokens));
  for (Scored& scored : inbox.scored) take_scores(std::move(scored));
  if (inbox.failed) {
    fail(*inbox.failed);
    return cancel_engine();  // the other samples
  }
  for (const End& end : inbox.ends) finish(end);
}

/// An event for each sample that has tokens.
void Completion::take_tokens(std::vector<Drawn> tokens) {
  std::stable_sort(tokens.begin(), tokens.end(), [](const Drawn& a, const Drawn& b) { return a.sample < b.sample; });
  for (auto next = tokens.begin(); next != tokens.end();) {
    const uint32_t sample = next->sample;
    client::Token event;
    event.id = request_.id;
    event.sample = sample;
    for (; next != tokens.end() && next->sample == sample; ++next) take_token(sample, std::move(next->sampled), event);
    if (!event.tokens.empty()) send(event);
  }
}

void Completion::take_token(uint32_t index, model::Sampled sampled, client::Token& event) {
  Sample& sample = samples_[index];
  if (sample.text.stopped() || request_.warm) return;  // it was on its way
  ++sample.completion_tokens;
  event.tokens.push_back(sampled.token);
  if (request_.sampling.want_logprobs)
    event.logprobs.push_back({sampled.token, sampled.logprob, std::move(sampled.top)});
  if (!sample.text.push(sampled.token, event.text) && sample.engine_id)
    services_.engine.finish_early(*sample.engine_id);
}

void Completion::take_scores(Scored scored) {
  client::ScoreReply reply;
  reply.id = request_.id;
  const size_t rows = scored.log_probs.size() + (scored.first == 0 ? 1 : 0);
  const auto begin = score_tokens_.begin() + scored.first;
  reply.tokens.assign(begin, begin + static_cast<std::ptrdiff_t>(rows));
  reply.log_probs = std::move(scored.log_probs);
  reply.top = std::move(scored.top);
  send(reply);
}

/// The prompt of all samples is sample 0's.
client::Usage Completion::usage_of(const End& end) const {
  client::Usage usage;
  usage.completion_tokens = samples_[end.sample].completion_tokens;
  if (end.sample != 0) return usage;
  usage.prompt_tokens = end.stats.prompt_tokens;
  usage.cached_tokens = end.stats.cached_tokens;
  usage.recomputed = recomputed_of(end.stats);
  usage.disk_tokens = end.stats.disk_tokens;
  return usage;
}

client::Done Completion::done_message(const End& end) const {
  const serve::RequestStats& stats = end.stats;
  client::Done done;
  done.id = request_.id;
  done.finish_reason = samples_[end.sample].text.stopped() ? FinishReason::stop : reason_of(end.how);
  done.model = running_ ? model_name_ : request_.model;
  done.seed = request_.sampling.seed;
  done.usage = usage_of(end);
  done.sample = end.sample;
  done.remaining = unfinished_;
  // What went before submission counts as waiting.
  const double before = running_ ? ms_between(received_, submitted_at_) : 0;
  done.timings.queue_ms = before + stats.queue_ms;
  done.timings.ttft_ms = stats.ttft_ms > 0 ? before + stats.ttft_ms : 0;
  done.timings.total_ms = ms_between(received_, std::chrono::steady_clock::now());
  if (stats.prefill_ms > 0) {
    const uint32_t computed = stats.prompt_tokens - stats.cached_tokens;
    done.timings.prefill_tokens_per_second = computed / stats.prefill_ms * 1e3;
  }
  if (stats.decode_ms > 0 && stats.completion_tokens > 1) {
    done.timings.decode_tokens_per_second = (stats.completion_tokens - 1) / stats.decode_ms * 1e3;
  }
  return done;
}

void Completion::finish(const End& end) {
  Sample& sample = samples_[end.sample];
  if (ended_ || sample.ended) return;
  if (request_.score && end.how == serve::Finish::cancelled)
    return fail({ErrorCode::cancelled, "the request was cancelled"});
  if (request_.score && end.how == serve::Finish::deadline)
    return fail(
        {ErrorCode::deadline, "the request's deadline of " + std::to_string(request_.deadline_ms) + " ms has passed"});
  sample.ended = true;
  --unfinished_;
  if (!request_.score && !sample.text.stopped() && running_) {
    client::Token rest;
    rest.id = request_.id;
    rest.sample = end.sample;
    rest.text = sample.text.finish();
    if (!rest.text.empty()) send(rest);
  }
  const client::Done done = done_message(end);
  if (running_) services_.metrics.request_ended(model_name_, request_.kind, done.finish_reason, end.stats);
  if (request_.score) return last(client::ScoreReply{request_.id, {}, {}, {}, true, usage_of(end)});
  if (request_.warm) return last(warm_reply(request_.id, done.finish_reason, end.stats, done.usage));
  if (unfinished_ != 0) return send(done);
  last(done);
}

void Completion::fail(const Failure& failure) {
  if (ended_) return;
  last(client::Error{request_.id, failure.code, failure.message, failure.retry_after_ms});
}

void Completion::send(const client::Message& message) {
  if (const auto conversation = conversation_.lock()) conversation->send(message);
}

void Completion::last(const client::Message& message) {
  ended_ = true;
  deadline_.reset();
  // The message, and what it is charged for, goes before the answer does; but the pool may have a cancelled one yet.
  if (running_ || !cancelled_) request_.prompt = nullptr;
  if (const auto conversation = conversation_.lock()) conversation->finish(request_.id, message);
}

}  // namespace ellm::daemon
