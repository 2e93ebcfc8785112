// A request with one reply that is worked on outside the I/O thread: what cancels it, and how its outcome becomes a
// frame.
#pragma once
#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <utility>

#include "daemon/conversation.h"

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

/// Its outcome as a frame; everything that `work` can throw becomes an Error. Any thread.
std::string frame_of(uint32_t id, const std::function<client::Message()>& work);

}  // namespace ellm::daemon
