#include "tools/bench/subject.h"

#include <algorithm>
#include <chrono>
#include <stdexcept>

#include "daemon/runtime/memory.h"
#include "tools/bench/cost.h"

namespace ellm::bench {
namespace {

constexpr uint32_t kRows = CostModel::kPrefillRows, kCopied = 512;

uint32_t page_count(uint32_t tokens) { return (tokens + shm::kPageTokens - 1) / shm::kPageTokens; }

double seconds_since(std::chrono::steady_clock::time_point begin) {
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
}

}  // namespace

uint32_t Subject::pages(const Work& work) { return work.batch * page_count(work.longest() + 2); }

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
  forward_ = std::make_unique<model::ForwardPass>(model_, kernels, pool, *kv_, std::max(kRows, batch), batch);
  Sequence all;
  grow(all, most * shm::kPageTokens);  // memory is there before it is timed
  end(all);
  original_.seed = 1;
  feed(original_, kCopied, true);  // caches and branches are warm, too
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

void Subject::feed(Sequence& s, uint32_t tokens, bool logits) {
  std::vector<uint32_t> ids(tokens);
  for (uint32_t i = 0; i < tokens; ++i) ids[i] = token(s.seed, s.length + i);
  for (uint32_t at = 0; at < tokens; at += kRows) {
    const uint32_t n = std::min(kRows, tokens - at);
    grow(s, n);
    const model::Chunk chunk{std::span(ids).subspan(at, n), s.length, s.pages, logits && at + n == tokens ? 1u : 0u};
    forward_->step({&chunk, 1});
    s.length += n;
  }
}

Subject::Sequence Subject::begin(uint32_t depth, uint32_t seed) {
  Sequence s;
  s.seed = seed;
  if (fill_ == Fill::prefill) {
    feed(s, depth, false);
    return s;
  }
  grow(s, depth);
  for (size_t i = 0; i < s.pages.size(); ++i)
    kv_->copy(original_.pages[i % page_count(kCopied)], s.pages[i], shm::kPageTokens);
  s.length = depth;
  return s;
}

void Subject::end(Sequence& s) {
  for (const shm::PageId page : s.pages) kv_->release(page);
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
    forward_->step(chunks);
  }
}

double Subject::run(const Work& work) {
  std::vector<Sequence> sequences;
  for (uint32_t i = 0; i < work.batch; ++i) sequences.push_back(begin(work.depth, i + 2));
  if (work.kind == Kind::decode) generate(sequences, 1);  // not counted: the first step after another kind of work
  const auto start = std::chrono::steady_clock::now();
  if (work.kind != Kind::decode)
    for (Sequence& s : sequences) feed(s, work.prompt, true);
  if (work.kind != Kind::prefill) generate(sequences, work.generate);
  const double seconds = seconds_since(start);
  for (Sequence& s : sequences) end(s);
  return seconds;
}

}  // namespace ellm::bench
