// Which rows the next step has: a row of every request that is being answered, and of prompts what there is time for.
// The engine thread alone calls it; nothing allocates after construction.
//
// Rows of prompts are given out a page's worth at a time, each time to the account that was served least. Batch
// accounts get what interactive ones leave, and their share (EngineLimits::batch_percent) where these want all. Within
// an account its oldest prompt and the one that has least to go take turns: nobody's short question waits for the same
// user's long document, and that one has half of the rows at least.
//
// A user of whom nothing is being answered yet, and who was served less than the others, may have a step of his own
// where his prompt ends in it and it takes no more than 1.5 times the bound together with the step before: so a first
// token comes about as soon beside somebody's two hundred answers as beside one.
//
// Where interactive requests are being answered and a step with all answers would take longer than the bound, batch
// answers take turns: as many as fit, their share at least, those first that waited longest.
#pragma once
#include <span>
#include <vector>

#include "daemon/serve/prefix_cache.h"
#include "daemon/serve/step_budget.h"

namespace ellm::serve {

/// A sequence's part in a step.
struct Piece {
  Sequence* sequence;  // a running one
  uint32_t rows, logits;
  size_t first_logits = 0;  // its first row of logits
};

/// What the other models are doing.
struct Neighbours {
  uint32_t running_models = 1;  // this one, too
  Urgency urgency = Urgency::nobody;
};

class StepPlan {
 public:
  StepPlan(const EngineLimits& limits, PrefixCache& cache, FairShares& shares);

  /// Plans a step over the running sequences.
  void make(const SequenceList& running, const Neighbours& neighbours);
  std::vector<Piece>& pieces() { return pieces_; }
  /// The step took this long; its pieces are as planned.
  StepLoad load() const;
  void took(double ms) {
    costs_.observe(load(), ms);
    last_ms_ = ms;
  }
  /// Whom a step with these sequences holds up.
  static Urgency urgency_of(const SequenceList& running);

 private:
  const Account* newcomer(const SequenceList& running, double allowed) const;
  void plan_decodes(const SequenceList& running, Urgency urgency);
  void plan_prompts(const SequenceList& running, RowBudget& budget);
  uint32_t give(const SequenceList& running, Priority priority, uint32_t rows, RowBudget& budget);
  Account* next_account(const SequenceList& running, Priority priority);
  Sequence* next_prompt(const SequenceList& running, const Account& account);
  bool open(Sequence& sequence, const SequenceList& running);
  uint32_t grant(Sequence& sequence, uint32_t rows, RowBudget& budget);
  uint32_t wanted_rows(const Sequence& sequence) const;

  const EngineLimits& limits_;
  PrefixCache& cache_;
  FairShares& shares_;
  StepCosts costs_;
  uint64_t turns_ = 0;  // places in steps that were given out, ever
  uint32_t score_rows_left_ = 0;
  const Account* only_ = nullptr;  // the newcomer that has this step for itself
  double last_ms_ = 0;
  double batch_due_ = 0;  // rows that batch prompts have to come
  std::vector<Piece> pieces_;
};

}  // namespace ellm::serve
