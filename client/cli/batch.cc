// ellm batch: a file of requests, some of them in flight at once. The main thread starts requests and writes results;
// the client's own thread hands in what has ended.
//
//   lines of the input ─► a window, sorted by how prompts begin ─► in flight (up to --in-flight) ─► inbox ─► output
//                                    ▲                                   │ busy, or the connection was lost
//                                    └───────────────────────────────────┘
#include <algorithm>
#include <condition_variable>
#include <deque>
#include <mutex>
#include <utility>

#include "client/cli/batch_output.h"
#include "client/cli/command_line.h"
#include "client/cli/failure.h"
#include "client/cli/interrupt.h"
#include "client/cli/output.h"
#include "client/cli/progress.h"
#include "client/cli/urgency.h"

namespace ellm::cli {
namespace {

using namespace std::chrono_literals;
using Clock = std::chrono::steady_clock;

constexpr size_t kWindowLines = 1024, kWindowBytes = 64 << 20;
constexpr size_t kMostAhead = 8 * kWindowLines;  // lines between the first without a result and the last begun
constexpr int kMostLosses = 5;                   // connections lost in a row, without a result
constexpr auto kShortestPause = 20ms;
constexpr uint32_t kShortestHintMs = 50;
constexpr size_t kGrowEvery = 64;  // answers without `busy` until one more is tried

constexpr const char* kExamples =
    "  ellm batch questions.jsonl                       results in questions.out.jsonl\n"
    "  ellm batch questions.jsonl --output - | jq -r .response.body.choices[0].message.content\n"
    "  ellm batch questions.jsonl --in-flight 8 --model qwen-0.5b\n"
    "  ellm batch questions.jsonl --restart             forget the results that are there\n"
    "  ellm batch questions.jsonl --deadline 60         none takes longer; then finish_reason is deadline\n"
    "A line: {\"custom_id\": \"q1\", \"method\": \"POST\", \"url\": \"/v1/chat/completions\",\n"
    "\"body\": {\"messages\": [{\"role\": \"user\", \"content\": \"Why?\"}], \"max_tokens\": 200}}.\n"
    "Also /v1/completions, with prompt. Defaults are those of `ellm run`.\n"
    "Results are in the order of the lines; a line that is no request, and one that the daemon refuses, has an error.\n"
    "Interrupted, even by kill -9, the same command goes on where it was. Exit code 65: some lines failed.";

struct Job {
  size_t index = 0;
  BatchRequest request;
};

struct Ended {
  uint64_t ticket;  // of one start of one job
  client::Completion completion;
  std::exception_ptr error;
};

/// From the client's thread to the main one.
class Inbox {
 public:
  void put(Ended ended) {
    std::lock_guard lock(mutex_);
    ended_.push_back(std::move(ended));
    filled_.notify_one();
  }
  std::vector<Ended> wait(std::chrono::milliseconds time) {
    std::unique_lock lock(mutex_);
    filled_.wait_for(lock, time, [&] { return !ended_.empty(); });
    return std::exchange(ended_, {});
  }

 private:
  std::mutex mutex_;
  std::condition_variable filled_;
  std::vector<Ended> ended_;
};

struct Options {
  std::string input, output;
  size_t in_flight = 32;
  bool restart = false;
};

bool was_cancelled(const client::Completion& completion) {
  const auto cancelled = [](const auto& c) { return c.finish_reason == client::FinishReason::cancelled; };
  return cancelled(completion) || std::any_of(completion.others.begin(), completion.others.end(), cancelled);
}

class Batch {
 public:
  Batch(const CommandLine& line, const UrgencyOptions& urgency, const Options& options, const BatchInput& input,
        BatchOutput& output)
      : model_(line.model), name_space_(line.name_space), urgency_(urgency), in_flight_(options.in_flight),
        input_(input), output_(output), client_(line.client_options(interrupted)), texts_(client_), limit_(in_flight_),
        progress_(output.done(), input.lines().size()) {}

  /// False when Ctrl-C has ended it.
  bool run() {
    while (output_.next() < input_.lines().size()) {
      if (interrupted()) return false;
      if (waiting_.empty()) fill_window();
      start();
      for (Ended& ended : inbox_.wait(paused() ? kShortestPause : 100ms)) take(std::move(ended));
      progress_.show(output_.done(), state());
    }
    return true;
  }
  std::string statistics() const {
    const double seconds = std::chrono::duration<double>(Clock::now() - begun_).count();
    return format("%zu prompt tokens (%zu cached), %zu tokens in %.1f s (%.0f/s)", prompt_tokens_, cached_tokens_,
                  tokens_, seconds, static_cast<double>(tokens_) / std::max(seconds, 1e-3));
  }

 private:
  bool paused() const { return !waiting_.empty() && Clock::now() < not_before_; }
  std::string state() const {
    std::string text = format("%zu in flight", running_.size());
    if (output_.failed() > 0) text += format(", %zu failed", output_.failed());
    return paused() ? text + ", the daemon is busy" : text;
  }

  BatchRequest request_of(const InputLine& line) const {
    if (line.bytes > client::kMaxFrameBytes)
      throw LineError("too_large", format("has more than %u MiB", client::kMaxFrameBytes >> 20));
    if (line.repeats != 0)
      throw LineError("duplicate_custom_id", format("has the custom_id of line %ju: %s", uintmax_t{line.repeats},
                                                    cli::quoted(line.custom_id).c_str()));
    BatchRequest request = parse_request(parse_line(input_.read(line)), model_);
    std::visit(
        [&](auto& r) {
          r.namespace_ = name_space_;
          urgency_.apply(r);
        },
        request);
    return request;
  }

  /// The next lines without results, those that begin alike beside each other.
  void fill_window() {
    size_t bytes = 0;
    for (; next_ < input_.lines().size() && waiting_.size() < kWindowLines && bytes < kWindowBytes; next_++) {
      if (output_.has(next_)) continue;
      if (next_ > output_.next() + kMostAhead) break;
      const InputLine& line = input_.lines()[next_];
      try {
        waiting_.push_back({next_, request_of(line)});
        bytes += line.bytes;
      } catch (const LineError& error) {
        output_.put(next_, broken_line(line, error), true);
      }
    }
    std::stable_sort(waiting_.begin(), waiting_.end(),
                     [](const Job& a, const Job& b) { return begins_before(a.request, b.request); });
  }

  void start() {
    while (!waiting_.empty() && running_.size() < limit_ && !paused() && !interrupted()) {
      const uint64_t ticket = ++last_ticket_;
      const Job& job = running_.emplace(ticket, std::move(waiting_.front())).first->second;
      waiting_.pop_front();
      auto on_end = [this, ticket](client::Completion completion, std::exception_ptr error) {
        inbox_.put({ticket, std::move(completion), std::move(error)});
      };
      try {
        std::visit([&](const auto& request) { client_.start(request, {}, on_end); }, job.request);
      } catch (...) {
        return fail(ticket, std::current_exception());
      }
    }
  }

  void take(Ended ended) {
    const auto found = running_.find(ended.ticket);
    if (found == running_.end()) return;  // its start has failed already
    if (ended.error) return fail(ended.ticket, ended.error);
    if (was_cancelled(ended.completion)) return again(ended.ticket, kShortestPause);
    const size_t index = found->second.index;
    std::string line;
    try {
      line = answer_line(input_.lines()[index], found->second.request, ended.completion, texts_);
    } catch (...) {
      return fail(ended.ticket, std::current_exception());
    }
    running_.erase(found);
    output_.put(index, std::move(line), false);
    prompt_tokens_ += ended.completion.usage.prompt_tokens;
    cached_tokens_ += ended.completion.usage.cached_tokens;
    tokens_ += ended.completion.usage.completion_tokens;
    for (const client::Completion& other : ended.completion.others) tokens_ += other.usage.completion_tokens;
    losses_ = 0;
    if (++since_busy_ % kGrowEvery == 0) limit_ = std::min(limit_ + 1, in_flight_);
  }

  /// Busy and lost requests run again: nothing of them has been written. What else the daemon says is their result.
  void fail(uint64_t ticket, std::exception_ptr error) try {
    std::rethrow_exception(error);
  } catch (const client::ClientError& refused) {
    using client::ErrorCode;
    const ErrorCode code = refused.code();
    if (code == ErrorCode::cancelled && interrupted()) return again(ticket, 0ms);
    if (code == ErrorCode::busy || code == ErrorCode::shutting_down) {
      limit_ = std::max<size_t>(1, std::min(limit_, running_.size() - 1));
      since_busy_ = 0;
      return again(ticket, std::chrono::milliseconds(std::max(refused.retry_after_ms(), kShortestHintMs)));
    }
    if (code == ErrorCode::unsupported_version || code == ErrorCode::unknown_message) throw;
    const size_t index = running_.extract(ticket).mapped().index;
    output_.put(index, refusal_line(input_.lines()[index], refused), true);
    losses_ = 0;
  } catch (const client::ConnectionError& lost) {
    if (lost.kind() != client::ConnectionError::Kind::lost) throw;
    // All that was in flight fails at once: one loss, not many.
    const auto now = Clock::now();
    if (now - last_loss_ > 10ms && ++losses_ >= kMostLosses) throw;
    last_loss_ = now;
    again(ticket, kShortestPause);
  }

  void again(uint64_t ticket, std::chrono::milliseconds pause) {
    waiting_.push_front(std::move(running_.extract(ticket).mapped()));
    not_before_ = std::max(not_before_, Clock::now() + pause);
  }

  const std::string model_, name_space_;
  const UrgencyOptions& urgency_;
  const size_t in_flight_;
  const BatchInput& input_;
  BatchOutput& output_;
  Inbox inbox_;  // outlives the client, whose thread fills it
  client::Client client_;
  TokenTexts texts_;
  std::deque<Job> waiting_;
  std::unordered_map<uint64_t, Job> running_;  // by ticket
  uint64_t last_ticket_ = 0;
  size_t next_ = 0;  // the first line that was in no window
  size_t limit_;     // in flight at most; falls where the daemon is busy
  size_t since_busy_ = 0;
  int losses_ = 0;
  Clock::time_point not_before_{}, last_loss_{};
  size_t prompt_tokens_ = 0, cached_tokens_ = 0, tokens_ = 0;
  const Clock::time_point begun_ = Clock::now();
  Progress progress_;
};

std::string default_output(std::string input) {
  constexpr std::string_view kEnding = ".jsonl";
  if (input.ends_with(kEnding)) input.resize(input.size() - kEnding.size());
  return input + ".out.jsonl";
}

/// Runs what is left; whatever ends it, what has been done is said.
std::string run_rest(const CommandLine& line, const UrgencyOptions& urgency, const Options& options,
                     const BatchInput& input, BatchOutput& output) {
  const auto advice = [&] {
    return format("%zu of %zu results are there; the same command goes on", output.done(), input.lines().size());
  };
  InterruptGuard guard;
  try {
    Batch batch(line, urgency, options, input, output);
    if (batch.run()) return ", " + batch.statistics();
  } catch (const client::ClientError&) {
    if (!interrupted()) throw;
  } catch (const client::ConnectionError&) {
    write_note(advice());
    throw;
  }
  write_note("interrupted: " + advice());
  throw Exit{kInterrupted};
}

}  // namespace

int batch_command(Invocation& invocation) {
  CommandLine line(
      invocation,
      "Runs a file of requests, one JSON object a line as in OpenAI's batch API, and writes a line with the "
      "result of each. Requests that begin alike run beside each other, so that what they share is read once.",
      kExamples);
  Options options;
  line.app.add_option("FILE", options.input, "The requests")->required();
  line.app
      .add_option("-o,--output", options.output, "Where results go; -: stdout. Default: NAME.out.jsonl for NAME.jsonl")
      ->type_name("FILE");
  line.app.add_option("--in-flight", options.in_flight, "Requests at once; fewer where the daemon is busy")
      ->type_name("N")
      ->capture_default_str()
      ->check(CLI::Range(1, 4096));
  line.app.add_flag("--restart", options.restart, "Forget the results that are there, and begin anew");
  line.add_model()->description("The model of requests that name none; default: the daemon's default model");
  line.add_namespace();
  UrgencyOptions urgency(line, client::Priority::batch);
  urgency.deadline()->description("End each answer after this time, with what there is of it (finish_reason deadline)");
  line.parse();
  if (options.output.empty()) options.output = default_output(options.input);
  const BatchInput input(options.input);
  BatchOutput output(options.output, input, options.restart);
  const size_t total = input.lines().size(), before = output.done();
  std::string statistics;
  if (before < total) statistics = run_rest(line, urgency, options, input, output);
  output.finish();
  std::string summary = format("%zu results in %s", total, output.path().c_str());
  if (before > 0) summary += format(" (%zu were there)", before);
  summary += statistics;
  if (output.failed() > 0)
    throw Failure(kData, format("%zu of %zu lines failed, see their errors: ", output.failed(), total) + summary);
  write_note(summary);
  return kOk;
}

}  // namespace ellm::cli
