// The preparation pool: what takes longer than the I/O thread may be held up (templates, tokenizing, loading models).
#pragma once
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>

namespace ellm::daemon {

class PreparePool {
 public:
  explicit PreparePool(unsigned threads);  // two at least: one remains for the light
  ~PreparePool();                          // finishes what runs, drops what waits
  PreparePool(const PreparePool&) = delete;

  /// `heavy`: may take seconds or minutes. One thread at most runs such jobs, so that the others' do not wait for them.
  enum class Weight : uint8_t { light, heavy };
  /// A message of `bytes`.
  static Weight weight_of(size_t bytes) { return bytes > kLightBytes ? Weight::heavy : Weight::light; }

  /// Any thread. Jobs of a weight run in the order in which they came; what they throw is logged, and the rest goes on.
  void submit(std::function<void()> job, Weight weight = Weight::light);
  /// Drops what waits, refuses more and waits for what runs.
  void stop();

 private:
  static constexpr size_t kLightBytes = 64 << 10;
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace ellm::daemon
