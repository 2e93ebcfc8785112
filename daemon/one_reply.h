// A request with one reply that is worked on outside the I/O thread: what cancels it, and how its outcome becomes a
// frame.
#pragma once
#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <utility>

#include "daemon/conversation.h"
#include "daemon/in_pool.h"

namespace ellm::daemon {

/// Cancelling it is forgetting it. Work that has not begun is left out.
class OneReply : public Job {
 public:
  OneReply(std::weak_ptr<Conversation> conversation, uint32_t id) : conversation_(std::move(conversation)), id_(id) {}
  bool cancelled() const { return cancelled_; }  // any thread
  void cancel() override {
    cancelled_ = true;
    if (const auto conversation = conversation_.lock()) {
      conversation->finish(id_, client::Error{id_, client::ErrorCode::cancelled, "the request was cancelled", 0});
    }
  }

 private:
  std::weak_ptr<Conversation> conversation_;
  uint32_t id_;
  std::atomic<bool> cancelled_{false};
};

client::Error to_error(uint32_t id, const Failure& failure);

/// Its outcome as a frame; everything that `work` can throw becomes an Error. Any thread. Throws std::bad_alloc where
/// there is no memory even for that.
std::string frame_of(uint32_t id, const std::function<client::Message()>& work);

/// The job's reply is what `work` returns or throws in the pool. What `work` holds, charges too, goes before the reply
/// does: the next request may come at once.
template <class Work>
void reply_from_pool(const std::shared_ptr<Conversation>& conversation, uint32_t id,
                     const std::shared_ptr<OneReply>& job, PreparePool::Weight weight, Work work) {
  auto frame = [id, job, work = std::move(work)] { return job->cancelled() ? std::string() : frame_of(id, work); };
  auto reply = [conversation, id, job](std::optional<std::string> made) {
    if (job->cancelled()) return;
    if (!made) return conversation->finish(id, client::Error{id, client::ErrorCode::too_large, kNoMemory, 0});
    conversation->finish_frame(id, std::move(*made));
  };
  Services& services = conversation->services();
  in_pool(services.pool, services.loop, weight, std::move(frame), std::move(reply));
}

}  // namespace ellm::daemon
