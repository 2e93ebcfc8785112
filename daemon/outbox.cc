// See outbox.h.
#include "daemon/outbox.h"

#include <new>

#include "daemon/log.h"

namespace ellm::daemon {

void Outbox::add(std::shared_ptr<Addressee> addressee) {
  std::lock_guard lock(mutex_);
  waiting_.push_back(std::move(addressee));
}

bool Outbox::flush() noexcept {
  std::lock_guard lock(mutex_);
  if (waiting_.empty() || posted_) return true;
  try {
    loop_.post([this] { deliver(); });
  } catch (const std::bad_alloc&) {
    return false;
  }
  return posted_ = true;
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
