// One generate, chat or score: prompt → ids (preparation pool) → engine → text without stop strings → events. Lives on
// the I/O thread; the engine's callbacks leave what they have in an inbox, which is collected once a step (outbox.h).
// The samples of a request are sequences of their own, to which the prompt cache gives one computed prompt.
#pragma once
#include <atomic>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <variant>
#include <vector>

#include "client/messages.h"
#include "daemon/answer_text.h"
#include "daemon/chat_prompt.h"
#include "daemon/conversation.h"

namespace ellm::daemon {

struct CompletionRequest {
  uint32_t id = 0;
  std::string model;
  const char* kind = "";  // generate | chat | score | warm
  client::Sampling sampling;
  bool score = false, continues_text = true;
  bool warm = false, pin = false;           // the prompt is computed, and pinned; no token is told
  std::optional<uint64_t> name_space = {};  // absent: the peer's own
  uint32_t score_top = 0;
  serve::Priority priority = serve::Priority::interactive;
  uint32_t deadline_ms = 0;  // from now; 0: none
  uint32_t samples = 1;
  PreparePool::Weight weight = PreparePool::Weight::light;
  /// In the pool; throws PromptError.
  std::function<Prompt(const LoadedModel&)> prompt;
};

//   resolving ──model──► preparing ──ids──► submitted ──► … tokens … ──► ended
//       └── cancel, deadline ┴── answers at once     └── cancel, deadline: the engine answers
class Completion : public Job, public Addressee, public std::enable_shared_from_this<Completion> {
 public:
  Completion(Services& services, const Peer& peer, std::weak_ptr<Conversation> conversation, CompletionRequest request);
  void start();
  void cancel() override;
  void collect() override;

 private:
  struct Scored {
    uint32_t first;
    std::vector<float> log_probs;
    std::vector<std::vector<std::pair<uint32_t, float>>> top;
  };
  struct Drawn {
    uint32_t sample;
    model::Sampled sampled;
  };
  struct End {
    uint32_t sample;
    serve::Finish how;
    serve::RequestStats stats;
  };
  struct Inbox {
    std::vector<Drawn> tokens;
    std::vector<Scored> scored;
    std::vector<End> ends;
    std::optional<Failure> failed;
  };
  struct Sample {
    AnswerText text;
    uint32_t completion_tokens = 0;
    std::optional<serve::RequestId> engine_id = std::nullopt;
    bool ended = false;
  };

  /// The engine's numbers of its samples; none of a cancelled one.
  using Prepared = std::variant<std::vector<serve::RequestId>, Failure>;

  Prepared prepare(const std::shared_ptr<const LoadedModel>& loaded);  // pool
  Prepared submit(const std::shared_ptr<const LoadedModel>& loaded);   // pool
  void prepared(const std::optional<Prepared>& outcome);
  serve::EngineRequest engine_request(const LoadedModel& loaded, Prompt prompt) const;
  serve::RequestEvents events(uint32_t sample);
  template <class F>
  void leave(F&& change);  // engine thread
  void submitted(const std::vector<serve::RequestId>& ids);
  void cancel_engine();
  void end_early(serve::Finish how);
  void take_inbox();
  void take_tokens(std::vector<Drawn> tokens);
  void take_token(uint32_t sample, model::Sampled sampled, client::Token& event);
  void take_scores(Scored scored);
  void finish(const End& end);
  void fail(const Failure& failure);
  void send(const client::Message& message);
  void last(const client::Message& message);
  client::Usage usage_of(const End& end) const;
  client::Done done_message(const End& end) const;

  Services& services_;
  const Peer peer_;
  std::weak_ptr<Conversation> conversation_;
  CompletionRequest request_;
  const std::chrono::steady_clock::time_point received_ = std::chrono::steady_clock::now();
  std::shared_ptr<void> deadline_;  // until the engine minds it

  std::atomic<bool> cancelled_{false};  // read by the pool
  // Written in the pool before submission; the I/O thread may read them once `running_`, which the engine's or the
  // pool's post has ordered after.
  std::vector<uint32_t> score_tokens_;
  std::chrono::steady_clock::time_point submitted_at_;
  std::string model_name_;

  std::mutex inbox_mutex_;
  Inbox inbox_;
  bool posted_ = false;

  // I/O thread.
  std::vector<Sample> samples_;
  uint32_t unfinished_;
  bool running_ = false, ended_ = false;
};

}  // namespace ellm::daemon
