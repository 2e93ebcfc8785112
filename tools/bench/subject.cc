#include "tools/bench/subject.h"

#include <algorithm>
#include <chrono>
#include <stdexcept>

#include "daemon/runtime/memory.h"

namespace ellm::bench {
namespace {

constexpr uint32_t kCopied = 512;

uint32_t page_count(uint32_t tokens) { return (tokens + shm::kPageTokens - 1) / shm::kPageTokens; }

double seconds_since(std::chrono::steady_clock::time_point begin) {
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
}

}  // namespace

uint32_t Subject::pages(const Work& work) {
  const uint32_t shared = work.shared ? work.depth / shm::kPageTokens * shm::kPageTokens : 0;
  return page_count(work.shared ? work.depth : 0) + work.batch * page_count(work.longest() + 2 - shared);
}

Subject::Subject(std::shared_ptr<const model::Model> model, const kernels::KernelSet& kernels,
                 runtime::WorkerPool& pool, shm::KvTypes kv, std::span<const Work> works, Fill fill)
    : model_(std::move(model)), fill_(fill) {
  uint32_t most = 0, batch = 1;
  for (const Work& w : works) most = std::max(most, pages(w)), batch = std::max(batch, w.batch);
  most += page_count(kCopied);
  const shm::PageGeometry geometry = model::page_geometry(model_->config(), kv);
  if (const size_t free = runtime::available_memory_bytes(); most * geometry.page_bytes() > free)
    throw std::runtime_error("keys and values need " + std::to_string(most * geometry.page_bytes() >> 20) + " MB, " +
                             std::to_string(free >> 20) + " MB are free");
  kv_ = shm::KvPages::create({.geometry = geometry, .pages = most, .fingerprint = "bench"});
  forward_ = std::make_unique<model::ForwardPass>(model_, kernels, pool, *kv_, std::max(kPrefillRows, batch), batch);
  Sequence all;
  grow(all, most * shm::kPageTokens);  // memory is there before it is timed
  end(all);
  original_.seed = 1;
  feed({&original_, 1}, kCopied, true);  // caches and branches are warm, too
}

uint32_t Subject::token(uint32_t seed, uint32_t position) const {
  const uint32_t mixed = (position * 2654435761u) ^ (seed * 40503u * 65537u);
  return (mixed >> 7) % model_->config().vocabulary;
}

void Subject::grow(Sequence& s, uint32_t tokens) {
  while (s.pages.size() < page_count(s.length + tokens)) {
    const auto page = kv_->allocate();
    if (!page) throw std::runtime_error("no memory for keys and values");
    s.pages.push_back(*page);
  }
}

void Subject::run_step(std::span<const model::Chunk> chunks) {
  forward_->step(chunks);
  kv_bytes_read_ += forward_->kv_bytes_read();
}

/// So many tokens of each, kPrefillRows a step, one sequence after another; with the logits of each one's last.
void Subject::feed(std::span<Sequence> sequences, uint32_t tokens, bool logits) {
  std::vector<uint32_t> ids(tokens * sequences.size());
  std::vector<model::Chunk> chunks;
  uint32_t room = kPrefillRows;
  for (size_t i = 0; i < sequences.size(); ++i) {
    Sequence& s = sequences[i];
    const std::span own = std::span(ids).subspan(i * tokens, tokens);
    for (uint32_t t = 0; t < tokens; ++t) own[t] = token(s.seed, s.length + t);
    for (uint32_t at = 0; at < tokens;) {
      const uint32_t n = std::min(room, tokens - at);
      grow(s, n);
      chunks.push_back({own.subspan(at, n), s.length, s.pages, logits && at + n == tokens ? 1u : 0u});
      s.length += n, at += n, room -= n;
      if (room != 0) continue;
      run_step(chunks);
      chunks.clear();
      room = kPrefillRows;
    }
  }
  if (!chunks.empty()) run_step(chunks);
}

Subject::Sequence Subject::begin(uint32_t depth, uint32_t seed) {
  Sequence s;
  s.seed = seed;
  if (fill_ == Fill::prefill) {
    feed({&s, 1}, depth, false);
    return s;
  }
  grow(s, depth);
  for (size_t i = 0; i < s.pages.size(); ++i)
    kv_->copy(original_.pages[i % page_count(kCopied)], s.pages[i], shm::kPageTokens);
  s.length = depth;
  return s;
}

/// Over the prefix's pages; of one that it fills in part, a copy.
Subject::Sequence Subject::begin_behind(const Sequence& prefix, uint32_t seed) {
  Sequence s;
  s.seed = seed;
  s.shared = prefix.length / shm::kPageTokens;
  s.pages.assign(prefix.pages.begin(), prefix.pages.begin() + static_cast<long>(s.shared));
  grow(s, prefix.length);
  if (const uint32_t rest = prefix.length % shm::kPageTokens)
    kv_->copy(prefix.pages[s.shared], s.pages[s.shared], rest);
  s.length = prefix.length;
  return s;
}

void Subject::end(Sequence& s) {
  for (size_t i = s.shared; i < s.pages.size(); ++i) kv_->release(s.pages[i]);
  s.pages.clear();
}

void Subject::generate(std::span<Sequence> sequences, uint32_t steps) {
  std::vector<uint32_t> ids(sequences.size());
  std::vector<model::Chunk> chunks(sequences.size());
  for (uint32_t step = 0; step < steps; ++step) {
    for (size_t i = 0; i < sequences.size(); ++i) {
      Sequence& s = sequences[i];
      ids[i] = token(s.seed, s.length);
      grow(s, 1);
      chunks[i] = {{&ids[i], 1}, s.length++, s.pages, 1};
    }
    run_step(chunks);
  }
}

Measured Subject::run(const Work& work) {
  Sequence prefix;
  if (work.shared) prefix = begin(work.depth, 1);
  std::vector<Sequence> sequences;
  for (uint32_t i = 0; i < work.batch; ++i)
    sequences.push_back(work.shared ? begin_behind(prefix, i + 2) : begin(work.depth, i + 2));
  if (work.kind == Kind::decode) generate(sequences, 1);  // not counted: the first step after another kind of work
  kv_bytes_read_ = 0;
  const auto start = std::chrono::steady_clock::now();
  if (work.kind != Kind::decode) feed(sequences, work.prompt, true);
  if (work.kind != Kind::prefill) generate(sequences, work.generate);
  const double seconds = seconds_since(start);
  size_t pages = prefix.pages.size();
  for (Sequence& s : sequences) pages += s.pages.size() - s.shared, end(s);
  end(prefix);
  return {seconds, kv_bytes_read_, pages * kv_->geometry().page_bytes()};
}

}  // namespace ellm::bench
