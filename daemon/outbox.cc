// See outbox.h.
#include "daemon/outbox.h"

#include <new>

#include "daemon/log.h"

namespace ellm::daemon {

void Outbox::add(std::shared_ptr<Addressee> addressee) {
  std::lock_guard lock(mutex_);
  waiting_.push_back(std::move(addressee));
}

/// Posts without the lock: the I/O thread is awake before that returns, and may have this core.
bool Outbox::flush() noexcept {
  {
    std::lock_guard lock(mutex_);
    if (waiting_.empty() || posted_) return true;
    posted_ = true;
  }
  try {
    loop_.post([this] { deliver(); });
    return true;
  } catch (const std::bad_alloc&) {
  }
  std::lock_guard lock(mutex_);
  return posted_ = false;
}

void Outbox::deliver() {
  {
    std::lock_guard lock(mutex_);
    std::swap(delivering_, waiting_);
    posted_ = false;
  }
  for (const auto& addressee : delivering_) {
    try {
      addressee->collect();
    } catch (const std::exception& e) {
      log_failure("in the I/O thread", e);
    }
  }
  delivering_.clear();
}

}  // namespace ellm::daemon
