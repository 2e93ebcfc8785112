// One generate, chat or score: prompt → ids (preparation pool) → engine → text without stop strings → events. Lives on
// the I/O thread; the engine's callbacks leave what they have in an inbox and post once for many.
#pragma once
#include <atomic>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <vector>

#include "client/messages.h"
#include "daemon/chat_prompt.h"
#include "daemon/conversation.h"
#include "daemon/stop_strings.h"

namespace ellm::daemon {

struct CompletionRequest {
  uint32_t id = 0;
  std::string model;
  const char* kind = "";  // generate | chat | score
  client::Sampling sampling;
  bool score = false, continues_text = true;
  bool warm = false, pin = false;  // the prompt is computed, and pinned; no token is told
  std::optional<uint64_t> name_space = {};  // absent: the peer's own
  uint32_t score_top = 0;
  PreparePool::Weight weight = PreparePool::Weight::light;
  /// In the pool; throws PromptError.
  std::function<Prompt(const LoadedModel&)> prompt;
};

//   resolving ──model──► preparing ──ids──► submitted ──► … tokens … ──► ended
//       └── cancel ─────────┴── answers at once     └── cancel: the engine answers
class Completion : public Job, public std::enable_shared_from_this<Completion> {
 public:
  Completion(Services& services, const Peer& peer, std::weak_ptr<Conversation> conversation, CompletionRequest request);
  void start();
  void cancel() override;

 private:
  struct Scored {
    uint32_t first;
    std::vector<float> log_probs;
    std::vector<std::vector<std::pair<uint32_t, float>>> top;
  };
  struct Inbox {
    std::vector<model::Sampled> tokens;
    std::vector<Scored> scored;
    std::optional<std::pair<serve::Finish, serve::RequestStats>> done;
    std::optional<std::string> failed;
  };

  void prepare(const std::shared_ptr<const LoadedModel>& loaded);                   // pool
  std::optional<Failure> submit(const std::shared_ptr<const LoadedModel>& loaded);  // pool
  serve::RequestEvents events();
  template <class F>
  void leave(F&& change);  // engine thread
  void submitted(serve::RequestId id);
  void cancel_engine();
  void collect();
  void take_tokens(std::vector<model::Sampled> tokens);
  bool take_text(const std::string& text, std::string& out);
  void take_scores(Scored scored);
  void finish(serve::Finish finish, const serve::RequestStats& stats);
  void fail(const Failure& failure);
  void send(const client::Message& message);
  void last(const client::Message& message);
  client::Message done_message(client::FinishReason reason, const serve::RequestStats& stats) const;

  Services& services_;
  const Peer peer_;
  std::weak_ptr<Conversation> conversation_;
  CompletionRequest request_;
  const std::chrono::steady_clock::time_point received_ = std::chrono::steady_clock::now();

  std::atomic<bool> cancelled_{false};  // read by the pool
  // Written in the pool before submission; the I/O thread may read them once `running_`, which the engine's or the
  // pool's post has ordered after.
  std::vector<uint32_t> score_tokens_;
  std::chrono::steady_clock::time_point submitted_at_;
  std::string model_name_;
  std::optional<format::StreamDecoder> decoder_;

  std::mutex inbox_mutex_;
  Inbox inbox_;
  bool posted_ = false;

  // I/O thread.
  std::optional<serve::RequestId> engine_id_;
  bool running_ = false, stopped_ = false, ended_ = false;
  StopFinder stops_;
  uint32_t completion_tokens_ = 0;
};

}  // namespace ellm::daemon
