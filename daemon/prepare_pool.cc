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
  std::deque<std::function<void()>> jobs;
  bool stopping = false;
  std::vector<std::thread> threads;

  void work() {
    std::unique_lock lock(mutex);
    for (;;) {
      wake.wait(lock, [this] { return stopping || !jobs.empty(); });
      if (stopping) return;
      auto job = std::move(jobs.front());
      jobs.pop_front();
      lock.unlock();
      try {
        job();
      } catch (const std::exception& e) {
        log(Priority::error, std::string("in the preparation pool: ") + e.what());
      }
      job = nullptr;  // what it holds is freed outside the lock
      lock.lock();
    }
  }
};

PreparePool::PreparePool(unsigned threads) : impl_(std::make_unique<Impl>()) {
  for (unsigned i = 0; i < threads; ++i) impl_->threads.emplace_back([this] { impl_->work(); });
}

PreparePool::~PreparePool() { stop(); }

void PreparePool::submit(std::function<void()> job) {
  std::lock_guard lock(impl_->mutex);
  if (impl_->stopping) return;
  impl_->jobs.push_back(std::move(job));
  impl_->wake.notify_one();
}

void PreparePool::stop() {
  std::deque<std::function<void()>> dropped;
  {
    std::lock_guard lock(impl_->mutex);
    impl_->stopping = true;
    dropped.swap(impl_->jobs);
    impl_->wake.notify_all();
  }
  for (auto& thread : impl_->threads) thread.join();
  impl_->threads.clear();
}

}  // namespace ellm::daemon
