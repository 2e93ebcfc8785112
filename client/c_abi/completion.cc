// ellm.h: completions. A stream's pieces wait in a queue that the connection's reader fills, so that callbacks run in
// the caller's thread and may call the client again.
#include <condition_variable>
#include <deque>
#include <memory>
#include <mutex>

#include "client/c_abi/handles.h"

using namespace ellm::client;
using namespace ellm::client::c_abi;

namespace {

/// What the reader leaves for the stream's owner.
class Inbox {
 public:
  void put(const Token& token) {
    std::lock_guard lock(mutex_);
    tokens_.push_back(token);
    changed_.notify_one();
  }
  void end(Completion completion, std::exception_ptr error) {
    std::lock_guard lock(mutex_);
    completion_ = std::move(completion), error_ = error, ended_ = true;
    changed_.notify_one();
  }
  /// ELLM_OK with a token, ELLM_END, ELLM_TIMEOUT; throws why the request failed.
  int take(Token& token, int timeout_ms) {
    std::unique_lock lock(mutex_);
    auto there = [&] { return ended_ || !tokens_.empty(); };
    if (timeout_ms < 0) changed_.wait(lock, there);
    else if (!changed_.wait_for(lock, std::chrono::milliseconds(timeout_ms), there)) return ELLM_TIMEOUT;
    if (!tokens_.empty()) {
      token = std::move(tokens_.front());
      tokens_.pop_front();
      return ELLM_OK;
    }
    if (error_) std::rethrow_exception(error_);
    return ELLM_END;
  }
  Completion completion() {
    std::lock_guard lock(mutex_);
    require(ended_ && !error_, "the stream has no answer: it has failed, or not ended");
    return completion_;
  }

 private:
  std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<Token> tokens_;
  Completion completion_;
  std::exception_ptr error_;
  bool ended_ = false;
};

Generate generate_of(const ellm_request& r) {
  Generate out;
  out.model = r.model, out.namespace_ = r.name_space, out.prompt = r.prompt, out.tokens = r.tokens,
  out.use_tokens = r.use_tokens;
  out.sampling = r.sampling, out.priority = r.priority, out.deadline_ms = r.deadline_ms, out.n = r.n;
  return out;
}
Chat chat_of(const ellm_request& r) {
  Chat out;
  out.model = r.model, out.namespace_ = r.name_space, out.messages = r.messages, out.tools = r.tools,
  out.variables = r.variables;
  out.sampling = r.sampling, out.priority = r.priority, out.deadline_ms = r.deadline_ms, out.n = r.n;
  return out;
}

}  // namespace

struct ellm_stream {
  std::shared_ptr<Inbox> inbox;
  Running running;
  Token current = {};  // what the last event points to
  std::vector<float> logprobs = {};
};

namespace {

template <class Request>
ellm_stream start(Client& client, Request request) {
  auto inbox = std::make_shared<Inbox>();
  Running running = client.start(
      std::move(request), [inbox](const Token& token) { inbox->put(token); },
      [inbox](Completion completion, std::exception_ptr error) { inbox->end(std::move(completion), error); });
  return {inbox, std::move(running)};
}

int next(ellm_stream& stream, ellm_event* event, int timeout_ms) {
  if (int code = stream.inbox->take(stream.current, timeout_ms)) return code;
  const Token& token = stream.current;
  stream.logprobs.clear();
  for (const TokenLogprob& entry : token.logprobs) stream.logprobs.push_back(entry.logprob);
  ellm_event out{};
  out.text = token.text.c_str(), out.text_length = token.text.size();
  out.tokens = token.tokens.data(), out.token_count = token.tokens.size();
  out.sample = token.sample;
  out.logprobs = stream.logprobs.empty() ? nullptr : stream.logprobs.data();
  copy_out(out, event);
  return ELLM_OK;
}

template <class Make>
int start_checked(ellm_client* client, const ellm_request* request, ellm_stream** stream, Make&& make) {
  return guarded([&] {
    require(client != nullptr && request != nullptr, "the client or the request is NULL");
    require(stream != nullptr, "where to put the stream is NULL");
    *stream = new ellm_stream(start(client->client, make(*request)));
  });
}

/// Hands its pieces to the caller; throws why it failed.
void pass_on(ellm_stream& stream, ellm_on_event on_event, void* user) {
  ellm_event event{};
  event.struct_size = sizeof event;
  bool stopped = false;
  while (next(stream, &event, -1) == ELLM_OK) {
    if (stopped || !on_event || on_event(&event, user) == 0) continue;
    stopped = true;
    stream.running.cancel();
  }
}

template <class Make>
int complete(ellm_client* client, const ellm_request* request, ellm_on_event on_event, void* user, ellm_reply** answer,
             Make&& make) {
  constexpr int kAttempts = 3;  // as the blocking calls of Client
  return guarded([&] {
    require(client != nullptr && request != nullptr, "the client or the request is NULL");
    for (int attempt = 1;; attempt++) {
      ellm_stream stream = start(client->client, make(*request));
      try {
        pass_on(stream, on_event, user);
      } catch (...) {
        if (attempt == kAttempts || !client->client.may_start_again(stream.running)) throw;
        continue;
      }
      if (answer) *answer = new ellm_reply(reply_of(stream.inbox->completion()));
      return;
    }
  });
}

}  // namespace

int ellm_generate(ellm_client* client, const ellm_request* request, ellm_on_event on_event, void* user,
                  ellm_reply** answer) {
  return complete(client, request, on_event, user, answer, generate_of);
}
int ellm_chat(ellm_client* client, const ellm_request* request, ellm_on_event on_event, void* user,
              ellm_reply** answer) {
  return complete(client, request, on_event, user, answer, chat_of);
}
int ellm_generate_start(ellm_client* client, const ellm_request* request, ellm_stream** stream) {
  return start_checked(client, request, stream, generate_of);
}
int ellm_chat_start(ellm_client* client, const ellm_request* request, ellm_stream** stream) {
  return start_checked(client, request, stream, chat_of);
}

int ellm_stream_next(ellm_stream* stream, ellm_event* event, int timeout_ms) {
  return guarded([&] {
    require(stream != nullptr, "the stream is NULL");
    require(event != nullptr && event->struct_size >= sizeof(size_t), "the event is NULL, or its struct_size not set");
    return next(*stream, event, timeout_ms);
  });
}

void ellm_stream_cancel(ellm_stream* stream) {
  if (stream) guarded([&] { stream->running.cancel(); });
}

int ellm_stream_answer(ellm_stream* stream, ellm_reply** answer) {
  return guarded([&] {
    require(stream != nullptr && answer != nullptr, "the stream, or where to put the answer, is NULL");
    *answer = new ellm_reply(reply_of(stream->inbox->completion()));
  });
}

void ellm_stream_free(ellm_stream* stream) {
  ellm_stream_cancel(stream);
  delete stream;
}
