// See prepare_pool.h.
#include "daemon/prepare_pool.h"

#include <condition_variable>
#include <deque>
#include <mutex>
#include <thread>
#include <vector>

#include "daemon/log.h"

namespace ellm::daemon {

struct PreparePool::Impl {
  std::mutex mutex;
  std::condition_variable wake;
  std::deque<std::function<void()>> light, heavy;
  bool heavy_runs = false, stopping = false;
  std::vector<std::thread> threads;

  void work() {
    std::unique_lock lock(mutex);
    for (;;) {
      wake.wait(lock, [this] { return stopping || !light.empty() || (!heavy.empty() && !heavy_runs); });
      if (stopping) return;
      const bool is_heavy = !heavy.empty() && !heavy_runs;
      auto& jobs = is_heavy ? heavy : light;
      auto job = std::move(jobs.front());
      jobs.pop_front();
      if (is_heavy) heavy_runs = true;
      lock.unlock();
      try {
        job();
      } catch (const std::exception& e) {
        log_failure("in the preparation pool", e);
      }
      job = nullptr;  // what it holds is freed outside the lock
      lock.lock();
      if (is_heavy) heavy_runs = false;
    }
  }
};

PreparePool::PreparePool(unsigned threads) : impl_(std::make_unique<Impl>()) {
  for (unsigned i = 0; i < threads; ++i) impl_->threads.emplace_back([this] { impl_->work(); });
}

PreparePool::~PreparePool() { stop(); }

void PreparePool::submit(std::function<void()> job, Weight weight) {
  std::lock_guard lock(impl_->mutex);
  if (impl_->stopping) return;
  (weight == Weight::heavy ? impl_->heavy : impl_->light).push_back(std::move(job));
  impl_->wake.notify_one();
}

void PreparePool::stop() {
  std::deque<std::function<void()>> light, heavy;  // dropped outside the lock
  {
    std::lock_guard lock(impl_->mutex);
    impl_->stopping = true;
    light.swap(impl_->light);
    heavy.swap(impl_->heavy);
    impl_->wake.notify_all();
  }
  for (auto& thread : impl_->threads) thread.join();
  impl_->threads.clear();
}

}  // namespace ellm::daemon
