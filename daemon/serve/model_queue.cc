// See model_queue.h. A request's pages are reserved as a number when it is admitted and taken one by one as it grows,
// so that memory which an answer does not reach is never touched.
#include "daemon/serve/model_queue.h"

#include <algorithm>
#include <cmath>

namespace ellm::serve {
namespace {

constexpr uint32_t kLeastPrefillRows = 32;  // beside answers
constexpr uint32_t kAloneFactor = 4;  // steps without answers may take this many times as long, and have more rows

uint32_t pages_for(uint32_t tokens) { return (tokens + shm::kPageTokens - 1) / shm::kPageTokens; }

EngineLimits fit(EngineLimits limits, const StepRunner& runner) {
  limits.step_tokens = std::max(1u, std::min(limits.step_tokens, runner.max_rows()));
  limits.max_running = std::max(1u, std::min({limits.max_running, limits.step_tokens, runner.max_logits()}));
  // At worst one request scores and each of the others takes a row of logits.
  limits.score_rows = std::max(1u, std::min(limits.score_rows, runner.max_logits() - limits.max_running + 1));
  return limits;
}

/// The natural log-probabilities of `next` (if there is one) and of the `count` best tokens, ties by the lower id.
void score_row(std::span<const float> logits, std::optional<uint32_t> next, uint32_t count,
               const kernels::KernelSet& kernels, float& log_prob, std::vector<std::pair<uint32_t, float>>& top) {
  const float total = kernels.log_sum_exp(logits.data(), static_cast<uint32_t>(logits.size()));
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

/// An owner that cannot take the last word must not end the engine, which serves the others.
template <class F>
void tell(F&& last_word) noexcept {
  try {
    last_word();
  } catch (const std::exception&) {
  }
}

}  // namespace

/// Of one row of logits: the drawn token, or the log-probability of the token that follows in the text and the best
/// ones.
struct ModelQueue::Drawn {
  model::Sampled sampled;
  float log_prob = 0;
  std::vector<std::pair<uint32_t, float>> top;
  std::string failure;
};

ModelQueue::ModelQueue(const std::string& name, Servable servable, const EngineLimits& limits,
                       const kernels::KernelSet& kernels, runtime::WorkerPool& pool, Listener& listener)
    : name_(name),
      servable_(std::move(servable)),
      limits_(fit(limits, *servable_.runner)),
      kernels_(kernels),
      pool_(pool),
      listener_(listener),
      total_pages_(servable_.kv->total_pages()),
      kv_locked_(servable_.kv->locked()),
      free_pages_(servable_.kv->free_pages()),
      prefill_rows_{limits_.step_tokens, limits_.step_tokens} {}

ModelQueue::~ModelQueue() = default;

void ModelQueue::sweep(Deque& sequences) {
  for (auto& sequence : sequences) {
    const auto ending = sequence->ending.load(std::memory_order_relaxed);
    if (ending == Sequence::Ending::none) continue;
    const auto kept = std::move(sequence);
    finish(*kept, ending == Sequence::Ending::stop ? Finish::stop : Finish::cancelled);
  }
  std::erase(sequences, nullptr);
}

void ModelQueue::sweep_and_admit() {
  sweep(running_);
  sweep(waiting_);
  // Strictly in order: nobody overtakes a large request that waits for pages.
  while (!waiting_.empty() && running_.size() < limits_.max_running && admit(*waiting_.front())) {
    running_.push_back(std::move(waiting_.front()));
    waiting_.pop_front();
  }
}

bool ModelQueue::admit(Sequence& sequence) {
  const uint32_t pages = pages_for(sequence.kv_tokens());
  if (pages > total_pages_ - reserved_pages_) return false;
  reserved_pages_ += pages;
  sequence.reserved_pages = pages;
  sequence.admitted = Clock::now();
  sequence.phase.store(Phase::prefill, std::memory_order_relaxed);
  listener_.admitted(sequence);
  return true;
}

/// Every decoding request gets its row; prompts share the rest of the step in the order of admission.
std::vector<ModelQueue::Piece> ModelQueue::plan() const {
  std::vector<Piece> pieces;
  uint32_t decodes = 0;
  for (const auto& sequence : running_) {
    if (sequence->prefilling()) continue;
    pieces.push_back({sequence, 1, 1});
    ++decodes;
  }
  uint32_t rows = std::min(limits_.step_tokens - std::min(decodes, limits_.step_tokens), prefill_rows_[decodes != 0]);
  uint32_t score_rows = limits_.score_rows;
  for (const auto& sequence : running_) {
    if (!sequence->prefilling()) continue;
    const bool score = sequence->request.score;
    const uint32_t left = sequence->prompt_tokens - sequence->computed;
    const uint32_t take = std::min({left, rows, score ? score_rows : rows});
    if (take == 0) continue;
    rows -= take;
    if (score) score_rows -= take;
    pieces.push_back({sequence, take, score ? take : (take == left ? 1u : 0u)});
  }
  return pieces;
}

/// Gives every piece the pages that it writes. Reserved pages can still lack memory behind them: the request fails
/// then.
void ModelQueue::allocate_pages(std::vector<Piece>& pieces) {
  std::erase_if(pieces, [this](const Piece& piece) {
    Sequence& s = *piece.sequence;
    while (s.pages.size() < pages_for(s.computed + piece.rows)) {
      const auto page = servable_.kv->allocate();
      if (!page) {
        fail(s, "the machine has no memory left for the request's keys and values");
        return true;
      }
      s.pages.push_back(*page);
    }
    return false;
  });
  populated_pages_.store(servable_.kv->populated_pages(), std::memory_order_relaxed);
  free_pages_.store(servable_.kv->free_pages(), std::memory_order_relaxed);
}

std::span<const float> ModelQueue::run(const std::vector<Piece>& pieces) {
  std::vector<model::Chunk> chunks;
  chunks.reserve(pieces.size());
  for (const Piece& piece : pieces) {
    const Sequence& s = *piece.sequence;
    chunks.push_back({std::span(s.tokens).subspan(s.computed, piece.rows), s.computed, s.pages, piece.logits});
  }
  return servable_.runner->step(chunks);
}

/// Rows are independent of each other, so the workers share them.
std::vector<ModelQueue::Drawn> ModelQueue::draw(const std::vector<Piece>& pieces, std::span<const float> logits) {
  struct Row {
    const Piece* piece;
    uint32_t position;
  };  // position: of the token that the row predicts
  std::vector<Row> rows;
  for (const Piece& piece : pieces) {
    for (uint32_t i = 0; i < piece.logits; ++i) {
      rows.push_back({&piece, piece.sequence->computed + piece.rows - piece.logits + i + 1});
    }
  }
  const size_t vocabulary = servable_.runner->vocabulary();
  if (logits.size() < rows.size() * vocabulary) throw std::runtime_error("the model returned too few logits");
  std::vector<Drawn> drawn(rows.size());
  const auto draw_one = [&](size_t i) {
    Sequence& s = *rows[i].piece->sequence;
    const auto row = logits.subspan(i * vocabulary, vocabulary);
    try {
      if (!s.request.score) {
        drawn[i].sampled = s.sampler.sample(row, rows[i].position, s.request.want_logprobs);
      } else {
        const auto next = rows[i].position < s.tokens.size() ? std::optional(s.tokens[rows[i].position]) : std::nullopt;
        score_row(row, next, s.request.score_top, kernels_, drawn[i].log_prob, drawn[i].top);
      }
    } catch (const std::exception& e) {
      drawn[i].failure = e.what();
    }
  };
  if (rows.size() == 1) {
    draw_one(0);
  } else if (!rows.empty()) {
    pool_.run([&](runtime::Worker& worker) {
      for (uint32_t i = worker.next(); i < rows.size(); i = worker.next()) draw_one(i);
    });
  }
  return drawn;
}

void ModelQueue::step() {
  std::vector<Piece> pieces;
  try {
    pieces = plan();
    allocate_pages(pieces);
  } catch (const std::exception& e) {
    for (const auto& sequence : running_) fail(*sequence, e.what());
    return drop_ended();
  }
  if (pieces.empty()) return drop_ended();
  size_t logits_rows = 0;
  for (Piece& piece : pieces) {
    piece.first_logits = logits_rows;
    logits_rows += piece.logits;
  }
  std::vector<Drawn> drawn;
  const auto start = Clock::now();
  try {
    drawn = draw(pieces, run(pieces));
  } catch (const std::exception& e) {
    for (const Piece& piece : pieces) fail(*piece.sequence, e.what());
    drop_ended();
    return;
  }
  adapt(pieces, std::chrono::duration<double, std::milli>(Clock::now() - start).count());
  for (const Piece& piece : pieces) {
    Sequence& s = *piece.sequence;
    s.computed += piece.rows;
    s.done.store(s.computed, std::memory_order_relaxed);
    if (s.ending.load(std::memory_order_relaxed) != Sequence::Ending::none) continue;  // swept before the next step
    const auto rows = std::span(drawn).subspan(piece.first_logits, piece.logits);
    try {
      deliver(piece, rows);
    } catch (const std::exception& e) {
      fail(s, e.what());
    }
  }
  drop_ended();
}

/// Steps that hold up running answers stay near the wanted time, a quarter more or less prefill at a time; those that
/// hold up nobody yet may take longer, but a cancel or a newcomer shall not wait for seconds either.
void ModelQueue::adapt(const std::vector<Piece>& pieces, double step_ms) {
  uint32_t decodes = 0, prefill = 0;
  for (const Piece& piece : pieces) (piece.sequence->prefilling() ? prefill : decodes) += piece.rows;
  if (limits_.step_ms == 0 || prefill == 0) return;
  const uint32_t factor = decodes != 0 ? 1 : kAloneFactor;
  const double wanted_ms = static_cast<double>(limits_.step_ms) * factor;
  const uint32_t least = std::min(kLeastPrefillRows * factor, limits_.step_tokens);
  uint32_t& rows = prefill_rows_[decodes != 0];
  const uint32_t full = std::min(rows, limits_.step_tokens - std::min(decodes, limits_.step_tokens));
  if (step_ms > wanted_ms && prefill >= full / 2) {  // fewer rows are not to blame
    rows = std::max(least, static_cast<uint32_t>(rows * std::max(0.25, wanted_ms / step_ms)));
  } else if (step_ms < 0.75 * wanted_ms && prefill >= full) {
    rows = std::min(limits_.step_tokens, rows + rows / 4 + 1);
  }
}

void ModelQueue::deliver(const Piece& piece, std::span<Drawn> rows) {
  Sequence& s = *piece.sequence;
  for (const Drawn& row : rows) {
    if (!row.failure.empty()) throw std::runtime_error(row.failure);
  }
  if (s.request.score) return deliver_score(s, s.computed - piece.rows, rows);
  if (!rows.empty()) deliver_token(s, std::move(rows[0].sampled));
}

void ModelQueue::deliver_token(Sequence& s, model::Sampled sampled) {
  const auto now = Clock::now();
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
  if (s.request.score_top != 0) {
    for (Drawn& row : rows) top.push_back(std::move(row.top));
  }
  const auto now = Clock::now();
  if (s.first_token == Clock::time_point{}) s.first_token = now;
  s.last_token = now;
  if (s.request.events.on_score) s.request.events.on_score(first, log_probs, top);
  if (!s.prefilling()) finish(s, Finish::stop);
}

void ModelQueue::leave(Sequence& s, bool served) {
  for (shm::PageId page : s.pages) servable_.kv->release(page);
  s.pages.clear();
  reserved_pages_ -= s.reserved_pages;
  s.reserved_pages = 0;
  free_pages_.store(servable_.kv->free_pages(), std::memory_order_relaxed);
  listener_.ended(s, served);
}

void ModelQueue::finish(Sequence& s, Finish finish) {
  leave(s, finish == Finish::stop || finish == Finish::length);
  const RequestStats stats = s.stats(Clock::now());
  const RequestEvents events = std::move(s.request.events);
  s.request.events = {};
  s.ended = true;
  tell([&] { if (events.on_done) events.on_done(finish, stats); });
}

void ModelQueue::fail(Sequence& s, const std::string& why) {
  if (s.ended) return;
  leave(s, false);
  const RequestEvents events = std::move(s.request.events);
  s.request.events = {};
  s.ended = true;
  tell([&] { if (events.on_failed) events.on_failed(why); });
}

void ModelQueue::drop_ended() {
  std::erase_if(running_, [](const auto& sequence) { return sequence->ended; });
}

void ModelQueue::end_all(Finish how) {
  for (auto* sequences : {&running_, &waiting_}) {
    for (const auto& sequence : *sequences) finish(*sequence, how);
    sequences->clear();
  }
}

}  // namespace ellm::serve
