// A machine without time of its own: one model's queue is driven step by step, and a step takes what a cost function
// says. What a request got and when is written down. One thread, no waiting, the same every time.
#pragma once
#include <algorithm>
#include <functional>
#include <map>

#include "daemon/serve/model_queue.h"
#include "tests/serve/answer.h"

namespace ellm::serve::testing {

/// The time of one simulation; there is one at a time.
inline double simulated_ms = 0;
inline Clock::time_point simulated_now() {
  const std::chrono::duration<double, std::milli> ms(simulated_ms);
  return Clock::time_point(std::chrono::duration_cast<Clock::duration>(ms));
}

/// Milliseconds of a step: weights are read once, every answer and every row of a prompt costs something, deep rows
/// more.
struct Machine {
  double base = 10, decode = 1, row = 1, row_per_depth = 0;
  std::function<double()> noise = [] { return 1.0; };  // times the true cost

  double ms(std::span<const model::Chunk> chunks) const {
    double sum = base;
    for (const auto& chunk : chunks) {
      const auto rows = static_cast<double>(chunk.tokens.size());
      sum += rows == 1 ? decode : rows * (row + row_per_depth * (chunk.first_position + rows / 2));
    }
    return sum * noise();
  }
};

class SimulatedRunner : public DelegatingRunner {
 public:
  SimulatedRunner(std::unique_ptr<StepRunner> runner, const Machine& machine)
      : DelegatingRunner(std::move(runner)), machine_(machine) {}
  std::span<const float> step(std::span<const model::Chunk> chunks) override {
    simulated_ms += machine_.ms(chunks);
    return DelegatingRunner::step(chunks);
  }

 private:
  const Machine& machine_;
};

struct Job {
  uint32_t uid = 0, prompt = 0, answer = 1;
  Priority priority = Priority::interactive;
  std::optional<double> deadline_ms = std::nullopt;  // from its submission
  bool score = false;
};

struct Record {  // what became of a job
  Job job;
  uint64_t salt = 0;
  std::shared_ptr<Sequence> sequence;
  double submitted = 0, ended = -1;
  std::vector<double> token_at;
  std::vector<uint32_t> tokens;
  std::vector<float> scores;
  std::optional<Finish> finish;
  RequestStats stats;
  double ttft() const { return token_at.at(0) - submitted; }
};

class Simulation : public ModelQueue::Listener {
 public:
  explicit Simulation(EngineLimits limits, uint32_t pages = 4096) : limits_(limits) {
    simulated_ms = 0;
    Fake fake;
    fake.pages = pages;
    fake.context = pages * shm::kPageTokens;
    fake.max_rows = limits.step_tokens;
    fake.max_logits = limits.max_running + limits.score_rows;
    script_ = fake.script;
    Servable servable = fake.servable();
    servable.runner = std::make_unique<SimulatedRunner>(std::move(servable.runner), machine);
    queue_ = std::make_unique<ModelQueue>("fake", std::move(servable), limits,
                                          *kernels::kernel_set(kernels::Level::scalar), pool_, &simulated_now, *this);
    pages_ = free();
  }

  Record& submit(const Job& job) {
    const uint64_t salt = runs.size();
    auto run = std::make_unique<Record>();
    Record& r = *run;
    r.job = job, r.salt = salt, r.submitted = simulated_ms;
    EngineRequest request;
    request.model = "fake";
    request.tokens = prompt_of(job.prompt, static_cast<uint32_t>(salt));
    request.sampling.temperature = 0;
    request.ignore_eos = true;
    request.uid = job.uid;
    request.priority = job.priority;
    request.score = job.score;
    if (job.deadline_ms) {
      request.deadline = simulated_now() + std::chrono::duration_cast<Clock::duration>(
                                               std::chrono::duration<double, std::milli>(*job.deadline_ms));
    }
    request.events.on_token = [this, &r](const model::Sampled& s) {
      r.tokens.push_back(s.token);
      r.token_at.push_back(simulated_ms);
      if (on_token) on_token(r);
    };
    request.events.on_score = [&r](uint32_t, const std::vector<float>& log_probs, const auto&) {
      r.scores.insert(r.scores.end(), log_probs.begin(), log_probs.end());
    };
    request.events.on_done = [this, &r](Finish finish, const RequestStats& stats) {
      r.finish = finish;
      r.stats = stats;
      r.ended = simulated_ms;
      ended_.push_back(&r);
    };
    r.sequence =
        std::make_shared<Sequence>(salt + 1, std::move(request), job.prompt + job.answer,
                                   *kernels::kernel_set(kernels::Level::scalar), weight_of(job.uid), simulated_now());
    SequenceList one{r.sequence};
    queue_->enqueue(one, one.begin());
    runs.push_back(std::move(run));
    return r;
  }

  /// One turn of the engine's loop. False: nothing runs.
  bool turn(const Neighbours& neighbours = {}) {
    queue_->sweep_and_admit();
    if (!queue_->has_running()) return false;
    queue_->step(neighbours);
    while (!ended_.empty()) {
      Record* run = ended_.front();
      ended_.erase(ended_.begin());
      if (on_end) on_end(*run);
    }
    return true;
  }
  void run_all() {
    while (turn()) {
    }
  }
  void run_until(double ms) {
    while (simulated_ms < ms && turn()) {
    }
  }

  /// Tokens run so far per user: prompts as far as they are done, and answers.
  std::map<uint32_t, double> served() const {
    std::map<uint32_t, double> tokens;
    for (const auto& run : runs) tokens[run->job.uid] += run->sequence->counted + run->tokens.size();
    return tokens;
  }
  uint32_t running(Priority priority) const {
    uint32_t count = 0;
    for (const auto& run : runs) {
      count += run->job.priority == priority && !run->finish && !waits(run->sequence->phase.load());
    }
    return count;
  }
  uint32_t free() const { return queue_->free_pages() + queue_->cached_pages(); }
  uint32_t all_pages() const { return pages_; }
  const std::vector<std::vector<std::pair<uint32_t, uint32_t>>>& steps() const { return script_->steps; }

  Machine machine;
  std::function<void(Record&)> on_token, on_end;
  std::vector<std::unique_ptr<Record>> runs;
  uint32_t preemptions = 0;
  std::vector<StepReport> reports;
  std::vector<RequestId> admissions;

 private:
  uint32_t weight_of(uint32_t uid) const {
    for (const auto& [user, weight] : limits_.weights) {
      if (user == uid) return weight;
    }
    return 1;
  }
  void admitted(Sequence& s) override { admissions.push_back(s.id); }
  void preempted(Sequence&) override { ++preemptions; }
  void ended(Sequence&) override {}
  void stepped(const StepReport& report) override { reports.push_back(report); }
  void untold(SequenceList& from, SequenceList::iterator sequence) override { from.erase(sequence); }

  EngineLimits limits_;
  std::shared_ptr<Script> script_;
  runtime::WorkerPool pool_{runtime::read_topology(), 1, false};
  std::unique_ptr<ModelQueue> queue_;
  std::vector<Record*> ended_;
  uint32_t pages_ = 0;
};

inline double percentile(std::vector<double> values, double p) {
  std::sort(values.begin(), values.end());
  return values.at(std::min(values.size() - 1, static_cast<size_t>(p * static_cast<double>(values.size()))));
}

inline double jain(const std::vector<double>& values) {
  double sum = 0, squares = 0;
  for (double v : values) sum += v, squares += v * v;
  return sum * sum / (static_cast<double>(values.size()) * squares);
}

}  // namespace ellm::serve::testing
