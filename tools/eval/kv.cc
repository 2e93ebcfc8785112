// See kv.h. All types go through the text together, a piece at a time, so that logits of a piece alone are kept.
#include "tools/eval/kv.h"

#include <algorithm>
#include <cmath>
#include <stdexcept>

#include "tools/logits.h"
#include "tools/model_runner.h"

namespace ellm::eval {
namespace {

constexpr uint32_t kPiece = 128, kFirstCounted = 8;

/// One sequence with KV of one type.
struct Subject {
  Subject(std::shared_ptr<const model::Model> model, runtime::WorkerPool& pool, const std::string& kernels,
          shm::KvTypes types, uint32_t tokens)
      : runner(std::move(model),
               {.kernels = kernels,
                .kv_type = types,
                .pages = (tokens + shm::kPageTokens - 1) / shm::kPageTokens,
                .max_rows = kPiece},
               pool) {}
  /// Logits of the text's next tokens, (tokens, vocabulary).
  std::span<const float> step(std::span<const uint32_t> tokens) {
    return runner.step({&sequence, tokens, static_cast<uint32_t>(tokens.size())});
  }
  double bytes_per_token() { return static_cast<double>(runner.kv().geometry().page_bytes()) / shm::kPageTokens; }

  tools::ModelRunner runner;
  tools::ModelRunner::Sequence sequence;
};

double divergence(const std::vector<double>& of, const std::vector<double>& from) {
  double kl = 0;
  for (size_t i = 0; i < of.size(); ++i) kl += std::exp(of[i]) * (of[i] - from[i]);
  return std::max(kl, 0.0);
}

struct Tally {
  double nll = 0;
  std::vector<double> kl;
};

KvResult summary(shm::KvTypes types, double bytes, Tally& tally, size_t predicted) {
  std::ranges::sort(tally.kl);
  double sum = 0;
  for (double kl : tally.kl) sum += kl;
  const size_t at =
      std::min(tally.kl.size() - 1, static_cast<size_t>(std::ceil(0.999 * static_cast<double>(tally.kl.size()))));
  return {shm::name_of(types), bytes, std::exp(tally.nll / static_cast<double>(predicted)),
          sum / static_cast<double>(tally.kl.size()), tally.kl[at]};
}

}  // namespace

std::vector<KvResult> evaluate_kv(const std::shared_ptr<const model::Model>& model, runtime::WorkerPool& pool,
                                  const std::string& kernels, std::span<const uint32_t> tokens,
                                  const std::vector<shm::KvTypes>& types) {
  const auto count = static_cast<uint32_t>(tokens.size());
  if (count < kFirstCounted + 2)
    throw std::runtime_error("the text has " + std::to_string(count) + " tokens, at least 10 are needed");
  std::vector<shm::KvTypes> all = {shm::KvType::f16};
  for (shm::KvTypes t : types)
    if (t != all[0]) all.push_back(t);
  std::vector<std::unique_ptr<Subject>> subjects;
  for (shm::KvTypes t : all) subjects.push_back(std::make_unique<Subject>(model, pool, kernels, t, count));
  std::vector<Tally> tallies(all.size());
  for (uint32_t at = 0; at < count; at += kPiece) {
    const auto piece = tokens.subspan(at, std::min(kPiece, count - at));
    const std::span<const float> reference = subjects[0]->step(piece);
    for (size_t s = 0; s < subjects.size(); ++s) {
      const std::span<const float> logits = s == 0 ? reference : subjects[s]->step(piece);
      const uint32_t vocabulary = subjects[s]->runner.vocabulary();
      for (uint32_t r = 0; r < piece.size(); ++r) {
        if (at + r < kFirstCounted) continue;
        const auto own = tools::log_softmax(tools::row_of(logits, r, vocabulary));
        const auto base = tools::log_softmax(tools::row_of(reference, r, vocabulary));
        tallies[s].kl.push_back(divergence(base, own));
        if (at + r + 1 < count) tallies[s].nll -= own[tokens[at + r + 1]];
      }
    }
  }
  std::vector<KvResult> results;
  for (size_t s = 0; s < all.size(); ++s)
    results.push_back(summary(all[s], subjects[s]->bytes_per_token(), tallies[s], count - 1 - kFirstCounted));
  return results;
}

}  // namespace ellm::eval
