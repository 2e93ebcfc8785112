// Collects what the engine tells about one request, and the same answer computed without an engine.
#pragma once
#include <chrono>
#include <condition_variable>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "daemon/serve/engine.h"
#include "tests/serve/fake_model.h"

namespace ellm::serve::testing {

/// It may go before its request has ended, where a test gives up: what is told then reaches nobody.
class Answer {
 public:
  Answer() = default;
  Answer(const Answer&) = delete;
  ~Answer() {
    std::lock_guard lock(line_->mutex);
    line_->answer = nullptr;
  }

  RequestEvents events() {
    RequestEvents e;
    e.on_token = [line = line_](const model::Sampled& s) {
      line->tell([&](Answer& a) { a.tokens.push_back(s.token); });
    };
    e.on_score = [line = line_](uint32_t first, const std::vector<float>& log_probs, const auto& best) {
      line->tell([&](Answer& a) {
        a.firsts.push_back(first);
        a.scores.insert(a.scores.end(), log_probs.begin(), log_probs.end());
        a.top.insert(a.top.end(), best.begin(), best.end());
      });
    };
    e.on_done = [line = line_](Finish finish, const RequestStats& stats) {
      line->tell([&](Answer& a) { a.finish = finish, a.stats = stats, ++a.ends; });
    };
    e.on_failed = [line = line_](Fault fault, const std::string& why) {
      line->tell([&](Answer& a) { a.failure = why, a.fault = fault, ++a.ends; });
    };
    return e;
  }
  /// False after a minute without an end: a machine may well stand still for ten seconds.
  bool wait() {
    std::unique_lock lock(line_->mutex);
    return changed_.wait_for(lock, kPatience, [&] { return ends != 0; });
  }
  bool wait_tokens(size_t n) {
    std::unique_lock lock(line_->mutex);
    return changed_.wait_for(lock, kPatience, [&] { return tokens.size() >= n; });
  }
  bool ended() {
    std::lock_guard lock(line_->mutex);
    return ends != 0;
  }

  std::vector<uint32_t> tokens, firsts;
  std::vector<float> scores;
  std::vector<std::vector<std::pair<uint32_t, float>>> top;
  std::optional<Finish> finish;
  std::optional<std::string> failure;
  Fault fault = Fault::daemon;
  RequestStats stats;
  int ends = 0;  // must come to exactly one

 private:
  static constexpr std::chrono::seconds kPatience{60};
  /// From the engine to an answer that may be gone.
  struct Line {
    explicit Line(Answer& to) : answer(&to) {}
    template <class F>
    void tell(F&& f) {
      std::lock_guard lock(mutex);
      if (!answer) return;
      f(*answer);
      answer->changed_.notify_all();
    }
    std::mutex mutex;
    Answer* answer;
  };
  const std::shared_ptr<Line> line_ = std::make_shared<Line>(*this);
  std::condition_variable changed_;
};

/// Greedy continuation of the fake model by hand.
inline std::vector<uint32_t> alone(const std::vector<uint32_t>& prompt, uint32_t max_tokens, bool ignore_eos = false) {
  uint64_t hash = 1;
  for (uint32_t token : prompt) hash = mix(hash, token);
  std::vector<uint32_t> out;
  while (out.size() < max_tokens) {
    const auto row = logits_of(hash);
    uint32_t best = 0;
    for (uint32_t i = 1; i < row.size(); ++i) {
      if (row[i] > row[best]) best = i;
    }
    if (best == kEnd && !ignore_eos) break;
    out.push_back(best);
    hash = mix(hash, best);
  }
  return out;
}

inline std::vector<uint32_t> prompt_of(uint32_t length, uint32_t salt) {
  std::vector<uint32_t> tokens(length);
  for (uint32_t i = 0; i < length; ++i) tokens[i] = 1 + static_cast<uint32_t>(mix(salt, i) % (kPoison - 1));
  return tokens;
}

inline EngineRequest greedy(std::vector<uint32_t> tokens, uint32_t max_tokens, Answer& answer) {
  EngineRequest r;
  r.model = "fake";
  r.tokens = std::move(tokens);
  r.sampling.temperature = 0;
  r.max_tokens = max_tokens;
  r.ignore_eos = true;
  r.kind = "generate";
  r.events = answer.events();
  return r;
}

/// An engine with the fake model on two workers.
struct Rig {
  explicit Rig(Fake fake = {}, EngineLimits limits = small(), Engine::Now now = &std::chrono::steady_clock::now)
      : limits(limits), script(fake.script) {
    engine = std::make_unique<Engine>(*kernels::kernel_set(kernels::Level::scalar), pool, limits, now);
    engine->add_servable("fake", fake.servable());
    pages = free();
  }
  ~Rig() { script->open(); }
  static EngineLimits small() {
    EngineLimits l;
    l.max_running = 8;
    l.max_queued = 64;
    l.step_tokens = 32;
    l.score_rows = 4;
    l.token_ms = 0;
    return l;
  }
  /// Pages that no request uses.
  uint32_t free() const {
    const auto row = engine->models().at(0);
    return row.free_pages + row.cached_pages;
  }

  EngineLimits limits;
  std::shared_ptr<Script> script;
  runtime::WorkerPool pool{runtime::read_topology(), 2, false};
  std::unique_ptr<Engine> engine;
  uint32_t pages = 0;
};

}  // namespace ellm::serve::testing
