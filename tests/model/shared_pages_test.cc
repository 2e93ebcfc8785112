// What a step reads of keys and values that its sequences share: each page once, by the count of the plan and by what
// the kernels are handed.
#include <gtest/gtest.h>

#include <atomic>

#include "tests/support/model_runner.h"
#include "tests/support/temp_dir.h"
#include "tests/support/tiny_model.h"

namespace ellm::tests {
namespace {

using kernels::KernelSet;

/// A page's blocks of one layer and KV head, as often as a kernel is handed them; what neighbours of a stack have in
/// common once.
std::atomic<uint64_t> handed{0};

void count_whole(const kernels::AttentionArgs& args) noexcept {
  handed += (args.first_position + args.rows - 1) / kernels::kPageTokens + 1;
  model::choose_kernels("auto").attention(args);
}
void count_stack(const kernels::AttentionArgs& args, uint32_t segment, uint32_t segments, float* partials) noexcept {
  const uint32_t pages = args.stack_pages;
  for (uint32_t i = 0; i < args.rows * pages; ++i) {
    if (args.k_blocks[i] && (i < pages || args.k_blocks[i] != args.k_blocks[i - pages])) ++handed;
  }
  model::choose_kernels("auto").attention_partial(args, segment, segments, partials);
}

/// Two layers, two KV heads of 8, a context of 16K.
class SharedPages : public ::testing::Test {
 protected:
  static constexpr uint32_t kPrefixPages = 256, kPrefix = kPrefixPages * shm::kPageTokens;
  static constexpr uint64_t kHeads = 2 * 2;

  SharedPages()
      : runner_(load_model(dir_.write("tiny.gguf", complete_model().u32("llama.context_length", 16384).bytes())),
                {.threads = 2, .kv_type = shm::KvType::int8, .pages = 20 * kPrefixPages}, counting()) {}
  static const KernelSet& counting() {
    static const KernelSet set = [] {
      KernelSet counted = model::choose_kernels("auto");
      counted.attention = count_whole;
      counted.attention_partial = count_stack;
      return counted;
    }();
    return set;
  }
  /// A sequence of pages that nobody has written to: what stands in them does not matter here.
  ModelRunner::Sequence prefix() {
    ModelRunner::Sequence s;
    while (s.pages.size() < kPrefixPages) s.pages.push_back(runner_.kv().allocate().value());
    s.length = kPrefix;
    return s;
  }
  /// Of one step that gives each sequence so many tokens, the pages that are read in a layer and KV head.
  uint64_t pages_read(std::span<ModelRunner::Sequence> sequences, uint32_t tokens = 1) {
    const std::vector<uint32_t> ids(tokens, 7);
    std::vector<ModelRunner::Feed> feeds;
    for (auto& sequence : sequences) feeds.push_back({&sequence, ids, 1});
    handed = 0;
    runner_.step(feeds);
    const uint64_t block = shm::kPageTokens * (8 + 16 + 2 * sizeof(float));  // K, V (padded), and their scales
    EXPECT_EQ(runner_.kv_bytes_read(), handed * block);
    EXPECT_EQ(handed % kHeads, 0u);
    return handed / kHeads;
  }

  TempDir dir_;
  ModelRunner runner_;
};

TEST_F(SharedPages, AreReadOnceByAllWhoDecode) {
  std::vector<ModelRunner::Sequence> sequences(16, prefix());
  for (int step = 0; step < 3; ++step) EXPECT_EQ(pages_read(sequences), kPrefixPages + 16);
  std::vector<ModelRunner::Sequence> apart;
  for (int i = 0; i < 16; ++i) apart.push_back(prefix());
  EXPECT_EQ(pages_read(apart), 16 * (kPrefixPages + 1));
}

/// Two families over prefixes of their own, whose members stand in the step by turns.
TEST_F(SharedPages, AreFoundWhereverTheSequencesStand) {
  const ModelRunner::Sequence one = prefix(), other = prefix();
  std::vector<ModelRunner::Sequence> sequences;
  for (int i = 0; i < 5; ++i) sequences.push_back(one), sequences.push_back(other);
  EXPECT_EQ(pages_read(sequences), 2 * kPrefixPages + 10);
}

/// Sequences that part within the prefix read what they have in common once, each length of it.
TEST_F(SharedPages, AreReadOnceUpToWhereTextsPart) {
  const ModelRunner::Sequence whole = prefix();
  std::vector<ModelRunner::Sequence> sequences(3, whole);
  sequences.push_back(whole);
  sequences.back().pages.resize(100);
  while (sequences.back().pages.size() < kPrefixPages)
    sequences.back().pages.push_back(runner_.kv().allocate().value());
  EXPECT_EQ(pages_read(sequences), kPrefixPages + (kPrefixPages - 100) + 4);
}

}  // namespace
}  // namespace ellm::tests
