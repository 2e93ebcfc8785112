// What each user holds of the daemon, charged to the uid that the kernel reports. A Charge is carried by what it pays
// for and gives back when that goes, on whichever thread that is.
#pragma once
#include <atomic>
#include <cstdint>
#include <map>
#include <memory>
#include <utility>

namespace ellm::daemon {

struct Holdings {
  std::atomic<uint64_t> bytes{0}, connections{0}, requests{0}, descriptors{0};
};

class Charge {
 public:
  using Kind = std::atomic<uint64_t> Holdings::*;
  Charge() = default;
  Charge(Charge&& other) noexcept { *this = std::move(other); }
  Charge& operator=(Charge&& other) noexcept {
    std::swap(holdings_, other.holdings_);
    std::swap(kind_, other.kind_);
    std::swap(amount_, other.amount_);
    return *this;
  }
  ~Charge() {
    if (holdings_) (*holdings_.*kind_).fetch_sub(amount_, std::memory_order_relaxed);
  }

  /// Empty where `amount` more would exceed `limit`. I/O thread.
  static Charge take(const std::shared_ptr<Holdings>& holdings, Kind kind, uint64_t amount, uint64_t limit) {
    Charge charge;
    if ((*holdings.*kind).load(std::memory_order_relaxed) + amount > limit) return charge;
    (*holdings.*kind).fetch_add(amount, std::memory_order_relaxed);
    charge.holdings_ = holdings;
    charge.kind_ = kind;
    charge.amount_ = amount;
    return charge;
  }
  /// False, and no change, where that would exceed `limit`. I/O thread.
  bool grow(uint64_t amount, uint64_t limit) {
    if ((*holdings_.*kind_).load(std::memory_order_relaxed) + amount > limit) return false;
    (*holdings_.*kind_).fetch_add(amount, std::memory_order_relaxed);
    amount_ += amount;
    return true;
  }
  uint64_t amount() const { return amount_; }
  explicit operator bool() const { return holdings_ != nullptr; }

 private:
  std::shared_ptr<Holdings> holdings_;
  Kind kind_ = nullptr;
  uint64_t amount_ = 0;
};

/// I/O thread.
class Accounts {
 public:
  std::shared_ptr<Holdings> of(uint32_t uid) {
    std::erase_if(users_, [](const auto& user) { return user.second.expired(); });
    auto held = users_[uid].lock();
    if (!held) users_[uid] = held = std::make_shared<Holdings>();
    return held;
  }

 private:
  std::map<uint32_t, std::weak_ptr<Holdings>> users_;
};

}  // namespace ellm::daemon
