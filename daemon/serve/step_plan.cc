// See step_plan.h.
#include "daemon/serve/step_plan.h"

#include <algorithm>
#include <tuple>

namespace ellm::serve {
namespace {

constexpr uint32_t kQuantum = shm::kPageTokens;
constexpr double kPairOfSteps = 1.5;  // times the bound, that a newcomer's step and the one before it may take
constexpr uint32_t kManyAnswers = 8;
constexpr double kMostDue = 512;  // rows that batch prompts can save up

uint32_t count_decodes(const SequenceList& running) {
  const auto answered = [](const auto& s) { return !s->prefilling(); };
  return static_cast<uint32_t>(std::count_if(running.begin(), running.end(), answered));
}

uint32_t left_of(const Sequence& s) { return s.prefill_end - s.computed - s.planned_rows; }

}  // namespace

StepPlan::StepPlan(const EngineLimits& limits, PrefixCache& cache, FairShares& shares)
    : limits_(limits), cache_(cache), shares_(shares) {
  pieces_.reserve(limits_.max_running);
}

Urgency StepPlan::urgency_of(const SequenceList& running) {
  Urgency urgency = Urgency::nobody;
  for (const auto& s : running) {
    if (s->prefilling()) continue;
    urgency = std::max(urgency, s->request.priority == Priority::interactive ? Urgency::interactive : Urgency::batch);
  }
  return urgency;
}

void StepPlan::make(const SequenceList& running, const Neighbours& neighbours) {
  pieces_.clear();
  const Urgency urgency = std::max(urgency_of(running), neighbours.urgency);
  const StepBounds bounds{limits_.token_ms, neighbours.running_models};
  for (const auto& s : running) s->planned_rows = 0, s->turn = Sequence::Turn::unasked;
  for (Account& account : shares_.accounts()) account.planned = 0;
  const double allowed = allowed_ms(bounds, urgency, costs_.decode_ms(count_decodes(running)));
  only_ = only_ == nullptr ? newcomer(running, allowed) : nullptr;
  if (!only_) plan_decodes(running, urgency);
  const auto decodes = static_cast<uint32_t>(pieces_.size());
  const double decode_ms = costs_.decode_ms(decodes);
  RowBudget budget(costs_, allowed_ms(bounds, urgency, decode_ms) - decode_ms,
                   limits_.step_tokens - std::min(decodes, limits_.step_tokens));
  plan_prompts(running, budget);
  for (const Piece& piece : pieces_) piece.sequence->last_turn = ++turns_;
}

/// Whose prompt goes before everybody's next tokens, now that they have just had one; null: nobody's.
const Account* StepPlan::newcomer(const SequenceList& running, double allowed) const {
  const auto is_answered = [&](const Account& account) {
    return std::any_of(running.begin(), running.end(),
                       [&](const auto& s) { return s->account == &account && !s->prefilling(); });
  };
  if (count_decodes(running) < kManyAnswers) return nullptr;  // few take little of a step
  for (const auto& s : running) {
    const Account& account = *s->account;
    if (!s->prefilling() || s->request.score || account.priority != Priority::interactive) continue;
    const double ms = left_of(*s) * costs_.row_ms(s->computed + left_of(*s) / 2.0);
    if (!costs_.rows_known() || left_of(*s) > limits_.step_tokens) continue;
    if (last_ms_ + ms > kPairOfSteps * allowed) continue;
    const bool least = std::all_of(running.begin(), running.end(), [&](const auto& other) {
      return other->account == &account || other->account->priority == Priority::batch ||
             other->account->served > account.served;
    });
    if (least && !is_answered(account)) return &account;
  }
  return nullptr;
}

void StepPlan::plan_decodes(const SequenceList& running, Urgency urgency) {
  uint32_t interactive = 0;
  for (const auto& s : running) {
    if (s->prefilling()) continue;
    interactive += s->request.priority == Priority::interactive;
    s->planned_rows = 1;
    pieces_.push_back({s.get(), 1, 1});
  }
  const auto all = static_cast<uint32_t>(pieces_.size());
  if (urgency != Urgency::interactive || limits_.token_ms == 0 || interactive == all) return;
  const uint32_t batch_least = std::max(1u, all * limits_.batch_percent / 100);
  uint32_t keep = all;
  while (keep > interactive + batch_least && costs_.decode_ms(keep) > limits_.token_ms) --keep;
  if (keep == all) return;
  for (const Piece& piece : pieces_) piece.sequence->planned_rows = 0;
  std::sort(pieces_.begin(), pieces_.end(), [](const Piece& a, const Piece& b) {
    const auto key = [](const Piece& p) {
      const bool batch = p.sequence->request.priority == Priority::batch;
      return std::tuple(batch, batch ? p.sequence->last_turn : 0, p.sequence->id);
    };
    return key(a) < key(b);
  });
  pieces_.resize(keep);
  for (const Piece& piece : pieces_) piece.sequence->planned_rows = 1;
}

void StepPlan::plan_prompts(const SequenceList& running, RowBudget& budget) {
  score_rows_left_ = limits_.score_rows;
  const uint32_t all = limits_.step_tokens;
  const auto due = static_cast<uint32_t>(batch_due_);
  uint32_t batch = due >= kQuantum ? give(running, Priority::batch, due, budget) : 0;
  const uint32_t interactive = give(running, Priority::interactive, all, budget);
  batch += give(running, Priority::batch, all, budget);
  bool batch_wants = false;
  for (const auto& s : running) {
    if (wanted_rows(*s) == 0) continue;
    s->account->wants = true;
    batch_wants |= s->request.priority == Priority::batch;
  }
  batch_due_ += (interactive + batch) * (limits_.batch_percent / 100.0) - batch;
  batch_due_ = batch_wants ? std::clamp(batch_due_, 0.0, kMostDue) : 0;
}

/// Up to `rows` rows to prompts of a class. Returns how many.
uint32_t StepPlan::give(const SequenceList& running, Priority priority, uint32_t rows, RowBudget& budget) {
  uint32_t given = 0;
  while (given < rows) {
    Account* account = next_account(running, priority);
    if (!account) break;
    Sequence* s = next_prompt(running, *account);
    if (!open(*s, running)) continue;
    const uint32_t granted = grant(*s, std::min(kQuantum, rows - given), budget);
    if (granted == 0) break;
    account->planned += static_cast<double>(granted) / account->weight;
    account->by_age = !account->by_age;
    given += granted;
  }
  return given;
}

/// How many more rows of its prompt could stand in this step. A score that was preempted runs once more through what it
/// has scored, without logits and in steps of their own.
uint32_t StepPlan::wanted_rows(const Sequence& s) const {
  if (!s.prefilling() || s.turn == Sequence::Turn::blocked) return 0;
  if (!s.request.score) return left_of(s);
  if (s.computed < s.scored) return s.scored - s.computed - s.planned_rows;
  return std::min(left_of(s), score_rows_left_);
}

/// The account served least of those with a prompt that can go on; null: none.
Account* StepPlan::next_account(const SequenceList& running, Priority priority) {
  Account* best = nullptr;
  for (const auto& s : running) {
    if (s->request.priority != priority || (only_ && s->account != only_) || wanted_rows(*s) == 0) continue;
    Account* account = s->account;
    if (!best || account->served + account->planned < best->served + best->planned) best = account;
  }
  return best;
}

Sequence* StepPlan::next_prompt(const SequenceList& running, const Account& account) {
  Sequence* best = nullptr;
  for (const auto& s : running) {
    if (s->account != &account || wanted_rows(*s) == 0) continue;
    const auto key = [&](const Sequence& x) { return std::pair(account.by_age ? 0u : left_of(x), x.id); };
    if (!best || key(*s) < key(*best)) best = s.get();
  }
  return best;
}

/// Whether its prompt can go on in this step. Asked once a step, before its first row is planned.
bool StepPlan::open(Sequence& s, const SequenceList& running) {
  if (s.turn == Sequence::Turn::unasked) {
    s.turn = cache_.advance(s, running) ? Sequence::Turn::open : Sequence::Turn::blocked;
  }
  return s.turn == Sequence::Turn::open;
}

uint32_t StepPlan::grant(Sequence& s, uint32_t rows, RowBudget& budget) {
  const uint32_t at = s.computed + s.planned_rows;
  const uint32_t take = budget.afford(at, std::min(rows, wanted_rows(s)));
  if (take == 0) return 0;
  budget.spend(at, take);
  if (s.planned_rows == 0) pieces_.push_back({&s, 0, 0});
  s.planned_rows += take;
  Piece& piece = *std::find_if(pieces_.begin(), pieces_.end(), [&](const Piece& p) { return p.sequence == &s; });
  piece.rows = s.planned_rows;
  if (s.request.score) {
    if (s.computed >= s.scored) piece.logits = piece.rows, score_rows_left_ -= take;
  } else {
    piece.logits = left_of(s) == 0 ? 1 : 0;
  }
  return take;
}

StepLoad StepPlan::load() const {
  StepLoad load;
  for (const Piece& piece : pieces_) {
    const Sequence& s = *piece.sequence;
    if (!s.prefilling()) {
      ++load.decodes;
      continue;
    }
    load.prefill_rows += piece.rows;
    load.depth_sum += piece.rows * (s.computed + piece.rows / 2.0);
  }
  return load;
}

}  // namespace ellm::serve
