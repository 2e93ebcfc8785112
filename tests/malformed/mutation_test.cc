// Valid files with a few bytes changed: each is opened or refused, never more. Every file follows from a seed and a
// number, which a failure prints. The slow suite tries other seeds for longer.
#include <gtest/gtest.h>

#include <chrono>
#include <random>

#include "tests/malformed/allocation_watch.h"
#include "tests/support/memory_file.h"
#include "tests/support/open_everything.h"
#include "tests/support/temp_dir.h"
#include "tests/support/test_data.h"
#include "tests/support/tiny_model.h"

namespace ellm::tests {
namespace {

using Random = std::mt19937_64;

uint64_t below(Random& random, uint64_t n) { return n ? random() % n : 0; }

struct Seed {
  std::string head;  // what is mutated
  uint64_t size;     // of the file; the rest is zeros
};

std::string interesting_number(Random& random) {
  const uint64_t values[] = {0,          1,
                             2,          3,
                             7,          8,
                             9,          12,
                             13,         31,
                             64,         255,
                             1u << 16,   INT32_MAX,
                             1u << 31,   UINT32_MAX,
                             1ull << 32, 1ull << 61,
                             1ull << 62, INT64_MAX,
                             1ull << 63, UINT64_MAX - 31,
                             UINT64_MAX};
  const uint64_t value = values[below(random, std::size(values))];
  return GgufBuilder::raw(value).substr(0, random() % 2 ? 4 : 8);
}

void mutate_once(std::string& bytes, Random& random) {
  const size_t at = below(random, bytes.size());
  const size_t length = std::min<size_t>(1 + below(random, 40), bytes.size() - at);
  switch (below(random, 7)) {
    case 0: bytes[at] = static_cast<char>(bytes[at] ^ (1 << below(random, 8))); break;
    case 1: bytes[at] = static_cast<char>(random()); break;
    case 2: bytes[at] = static_cast<char>(bytes[at] + (random() % 2 ? 1 : -1)); break;
    case 3: {
      const std::string number = interesting_number(random);
      bytes.replace(at, std::min(number.size(), bytes.size() - at), number);
      break;
    }
    case 4: bytes.erase(at, length); break;
    case 5: bytes.insert(below(random, bytes.size()), bytes.substr(at, length)); break;
    default: bytes.replace(at, length, bytes.substr(below(random, bytes.size() - length + 1), length)); break;
  }
  if (bytes.empty()) bytes = "G";
}

void run(const std::vector<Seed>& seeds, uint64_t seed, std::chrono::seconds duration) {
  const auto end = std::chrono::steady_clock::now() + duration;
  MemoryFile file;
  uint64_t tried = 0, opened = 0;
  for (; tried < 200 || std::chrono::steady_clock::now() < end; tried++) {
    Random random(seed * 1'000'003 + tried);
    const Seed& base = seeds[tried % seeds.size()];
    std::string head = base.head;
    for (uint64_t n = 1 + below(random, 4); n > 0; n--) mutate_once(head, random);
    const uint64_t size = random() % 16 ? base.size : below(random, base.size);
    file.fill(head, size);
    SCOPED_TRACE("seed " + std::to_string(seed) + ", number " + std::to_string(tried));
    reset_largest_allocation();
    try {
      open_everything(file.path());
      opened++;
    } catch (const format::FormatError& error) {
      if (std::string_view(error.what()).find("/proc/self/fd/") == std::string_view::npos)
        ADD_FAILURE() << "the message names no file: " << error.what();
    } catch (const std::exception& error) {
      ADD_FAILURE() << "another exception: " << error.what();
    }
    EXPECT_LE(largest_allocation(), 64 * size + (1 << 20));
    if (::testing::Test::HasFailure()) return;
  }
  // Most mutations hit values that do not matter to opening or those that do; both must happen.
  EXPECT_GT(opened, 0u);
  EXPECT_LT(opened, tried);
  ::testing::Test::RecordProperty("tried", std::to_string(tried));
}

std::vector<Seed> tiny_models() {
  std::vector<Seed> seeds;
  for (const char* architecture : {"llama", "qwen2"}) {
    GgufBuilder b = tiny_model(architecture);
    std::vector<std::string> tokens = {"<unk>", "<s>", "</s>", "a", "b", "ab"};
    std::vector<int32_t> types = {2, 3, 3, 1, 1, 1};
    while (tokens.size() < 40) tokens.push_back("token" + std::to_string(tokens.size())), types.push_back(1);
    b.string("tokenizer.ggml.model", "llama").strings("tokenizer.ggml.tokens", tokens);
    b.array<float>("tokenizer.ggml.scores", 6, std::vector<float>(40, -1));
    b.array<int32_t>("tokenizer.ggml.token_type", 5, types);
    b.u32("tokenizer.ggml.bos_token_id", 1).u32("tokenizer.ggml.eos_token_id", 2).u32("general.alignment", 32);
    b.string("tokenizer.chat_template", "{% for m in messages %}{{ m.role + ': ' + m['content'] }}\n{% endfor %}");
    b.string(std::string(architecture) + ".rope.scaling.type", "yarn");
    b.f32(std::string(architecture) + ".rope.scaling.factor", 4);
    const std::string bytes = b.bytes();
    seeds.push_back({bytes.substr(0, 5000), bytes.size()});  // metadata, the tensor list and a little of the data
  }
  return seeds;
}

std::vector<Seed> stories() {
  const auto data = test_data();
  if (!data) return {};
  const std::string bytes = read_file(*data + "/models/stories260K.gguf");
  return {{bytes.substr(0, 20000), bytes.size()}};  // metadata and tensor list end below 20,000 bytes
}

TEST(Mutation, TinyModels) { run(tiny_models(), 1, std::chrono::seconds(2)); }

TEST(MutationReference, Stories) {
  const std::vector<Seed> seeds = stories();
  if (seeds.empty()) GTEST_SKIP() << "ELLM_TEST_DATA is not set";
  run(seeds, 2, std::chrono::seconds(2));
}

TEST(MutationSlow, TinyModels) { run(tiny_models(), 3, std::chrono::seconds(60)); }

TEST(MutationReferenceSlow, Stories) {
  const std::vector<Seed> seeds = stories();
  if (seeds.empty()) GTEST_SKIP() << "ELLM_TEST_DATA is not set";
  run(seeds, 4, std::chrono::seconds(60));
}

}  // namespace
}  // namespace ellm::tests
