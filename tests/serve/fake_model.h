// A model whose logits are a hash of the tokens before them, read back from its KV pages: wrong pages, positions,
// orders or reuse change the answer. `alone` computes the same answer without the engine.
#pragma once
#include <atomic>
#include <cmath>
#include <condition_variable>
#include <functional>
#include <memory>
#include <mutex>
#include <stdexcept>
#include <vector>

#include "daemon/serve/servable.h"
#include "shm/page_record.h"

namespace ellm::serve::testing {

inline constexpr uint32_t kVocabulary = 97;
inline constexpr uint32_t kEnd = 0;
inline constexpr uint32_t kPoison = 96;  // a prompt with it makes the step throw

inline uint64_t mix(uint64_t hash, uint64_t value) {
  hash = (hash ^ value) * 0x9e3779b97f4a7c15ull;
  hash ^= hash >> 29;
  return hash * 0xbf58476d1ce4e5b9ull ^ hash >> 32;
}

inline std::vector<float> logits_of(uint64_t hash) {
  std::vector<float> row(kVocabulary);
  for (uint32_t i = 0; i < kVocabulary; ++i) row[i] = static_cast<float>(mix(hash, i) >> 40) / 2.0e6f;  // 0 … 8.4
  row[kPoison] = -1;  // never drawn greedily
  return row;
}

/// What a step was asked to do, and a gate at which steps wait while it is closed.
struct Script {
  std::mutex mutex;
  std::condition_variable changed;
  bool closed = false;
  uint32_t waiting = 0;                                           // steps that stand at the gate
  std::vector<std::vector<std::pair<uint32_t, uint32_t>>> steps;  // per chunk: first position, rows
  std::atomic<uint32_t> delay_us{0};
  std::atomic<uint32_t> nan_token{kVocabulary};  // the logits behind it are NaN

  void close() {
    std::lock_guard lock(mutex);
    closed = true;
  }
  void open() {
    std::lock_guard lock(mutex);
    closed = false;
    changed.notify_all();
  }
  void await_step() {
    std::unique_lock lock(mutex);
    changed.wait(lock, [&] { return waiting != 0; });
  }
  /// Lets one step through the closed gate, the next to come if none stands there.
  uint32_t passes = 0;
  void pass_one() {
    std::unique_lock lock(mutex);
    ++passes;
    changed.notify_all();
    changed.wait(lock, [&] { return passes == 0; });
  }
};

/// Does what another does; for runners that only add something to its steps.
class DelegatingRunner : public StepRunner {
 public:
  explicit DelegatingRunner(std::unique_ptr<StepRunner> runner) : runner_(std::move(runner)) {}
  std::span<const float> step(std::span<const model::Chunk> chunks) override { return runner_->step(chunks); }
  uint32_t max_rows() const override { return runner_->max_rows(); }
  uint32_t max_logits() const override { return runner_->max_logits(); }
  uint32_t vocabulary() const override { return runner_->vocabulary(); }

 private:
  std::unique_ptr<StepRunner> runner_;
};

class FakeRunner : public StepRunner {
 public:
  FakeRunner(shm::KvPages& kv, uint32_t max_rows, uint32_t max_logits, std::shared_ptr<Script> script)
      : kv_(kv), max_rows_(max_rows), max_logits_(max_logits), script_(std::move(script)) {}

  std::span<const float> step(std::span<const model::Chunk> chunks) override;
  uint32_t max_rows() const override { return max_rows_; }
  uint32_t max_logits() const override { return max_logits_; }
  uint32_t vocabulary() const override { return kVocabulary; }

 private:
  /// A token's K are the four quarters of its hash, in f16's layout: [4 dimensions][32 tokens].
  uint16_t* quarter(const model::Chunk& chunk, uint32_t position, uint32_t dimension) {
    return reinterpret_cast<uint16_t*>(kv_.payload(chunk.pages[position / shm::kPageTokens])) +
           dimension * shm::kPageTokens + position % shm::kPageTokens;
  }
  uint64_t load(const model::Chunk& chunk, uint32_t position) {
    uint64_t hash = 0;
    for (uint32_t d = 0; d < 4; ++d) hash |= uint64_t{*quarter(chunk, position, d)} << (16 * d);
    return hash;
  }
  void store(const model::Chunk& chunk, uint32_t position, uint64_t hash) {
    for (uint32_t d = 0; d < 4; ++d) *quarter(chunk, position, d) = static_cast<uint16_t>(hash >> (16 * d));
  }
  void check_pages(std::span<const model::Chunk> chunks);

  shm::KvPages& kv_;
  uint32_t max_rows_, max_logits_;
  std::shared_ptr<Script> script_;
  std::vector<float> logits_;
};

/// A page that a chunk writes belongs to it alone.
inline void FakeRunner::check_pages(std::span<const model::Chunk> chunks) {
  enum : uint8_t { kRead = 1, kWritten = 2 };
  std::vector<uint8_t> used(kv_.total_pages());
  for (const model::Chunk& chunk : chunks) {
    for (size_t i = 0; i < chunk.pages.size(); ++i) {
      const bool written = i >= chunk.first_position / shm::kPageTokens;
      uint8_t& mark = used[chunk.pages[i]];
      if (mark == kWritten || (mark == kRead && written))
        throw std::logic_error("a page is written and used by another");
      mark = written ? kWritten : kRead;
      if (written && kv_.record(chunk.pages[i]).state.load() != shm::PageState::filling)
        throw std::logic_error("a sealed page is written");
    }
  }
}

inline std::span<const float> FakeRunner::step(std::span<const model::Chunk> chunks) {
  {
    std::unique_lock lock(script_->mutex);
    auto& record = script_->steps.emplace_back();
    for (const auto& chunk : chunks)
      record.emplace_back(chunk.first_position, static_cast<uint32_t>(chunk.tokens.size()));
    ++script_->waiting;
    script_->changed.notify_all();
    script_->changed.wait(lock, [&] { return !script_->closed || script_->passes != 0; });
    if (script_->closed) --script_->passes;
    --script_->waiting;
    script_->changed.notify_all();
  }
  if (script_->delay_us != 0) std::this_thread::sleep_for(std::chrono::microseconds(script_->delay_us));
  uint32_t rows = 0, wanted = 0;
  check_pages(chunks);
  logits_.clear();
  for (const model::Chunk& chunk : chunks) {
    if (chunk.tokens.empty() || chunk.logits > chunk.tokens.size()) throw std::logic_error("impossible chunk");
    const uint32_t last = chunk.first_position + static_cast<uint32_t>(chunk.tokens.size());
    if (chunk.pages.size() * shm::kPageTokens < last) throw std::logic_error("too few pages");
    for (size_t i = 0; i < chunk.tokens.size(); ++i) {
      if (chunk.tokens[i] == kPoison) throw std::runtime_error("poisoned");
      const uint32_t position = chunk.first_position + static_cast<uint32_t>(i);
      const uint64_t hash = mix(position == 0 ? 1 : load(chunk, position - 1), chunk.tokens[i]);
      store(chunk, position, hash);
      if (i + chunk.logits >= chunk.tokens.size()) {
        auto row = logits_of(hash);
        if (chunk.tokens[i] == script_->nan_token) row.assign(kVocabulary, std::nanf(""));
        logits_.insert(logits_.end(), row.begin(), row.end());
        ++wanted;
      }
    }
    rows += static_cast<uint32_t>(chunk.tokens.size());
  }
  if (rows > max_rows_ || wanted > max_logits_) throw std::logic_error("the step is larger than was agreed");
  return logits_;
}

struct Fake {
  std::shared_ptr<Script> script = std::make_shared<Script>();
  uint32_t pages = 64, context = 512, max_rows = 64, max_logits = 32;

  Servable servable() const {
    Servable s;
    s.kv_type = "f16";
    s.context = context;
    s.is_end = [](uint32_t token) { return token == kEnd; };
    shm::StoreOptions options;
    options.geometry = {1, 1, 4, shm::KvType::f16, shm::KvType::f16};
    options.pages = pages;
    s.kv = shm::KvPages::create(options);
    s.runner = std::make_unique<FakeRunner>(*s.kv, max_rows, max_logits, script);
    return s;
  }
};

}  // namespace ellm::serve::testing
