// The machine's limits and what disturbs them: that the loops do what they count, never how fast.
#include <gtest/gtest.h>
#include <unistd.h>

#include <cstring>

#include "tests/support/temp_dir.h"
#include "tools/bench/disturbance.h"
#include "tools/bench/limits.h"
#include "tools/bench/loops.h"
#include "tools/bench/program.h"
#include "tools/bench/random_weights.h"
#include "tools/bench/series.h"

namespace ellm::bench {
namespace {

using kernels::Level;

std::vector<Level> levels() {
  std::vector<Level> out;
  for (const Level level : {Level::scalar, Level::avx2, Level::avx512, Level::amx})
    if (runs_here(level)) out.push_back(level);
  return out;
}

TEST(BenchLoops, ReadEveryByteOnce) {
  constexpr size_t kBytes = 4 * 4096;
  const HugeMemory memory = allocate_huge(kBytes);
  Random random(3);
  uint64_t expected = 0;
  for (size_t i = 0; i < kBytes; i += 8) {
    const uint64_t word = random.next();
    expected ^= word;
    std::memcpy(memory.get() + i, &word, 8);
  }
  for (const Level level : levels())
    for (const int streams : {1, 2, 4})
      EXPECT_EQ(read_memory(level, memory.get(), kBytes, streams), expected) << streams;
}

TEST(BenchLoops, CountTheirOperations) {
  for (const Level level : levels()) {
    for (const int added : {1, 2, 4, 8}) {
      const uint64_t once = run_integer_loop(level, added, 1);
      EXPECT_GT(once, 0u);
      EXPECT_EQ(run_integer_loop(level, added, 7), 7 * once);
    }
    EXPECT_EQ(run_fma_loop(level, 7), 7 * run_fma_loop(level, 1));
  }
  if (levels().size() > 1) {
    EXPECT_EQ(run_integer_loop(Level::avx2, 8, 1), 8 * run_integer_loop(Level::avx2, 1, 1));
  }
}

TEST(BenchLimits, PeaksGoByTheInstructionsOfAType) {
  Limits limits;
  limits.integer = {1, 2, 4, 8}, limits.floating = 16;
  limits.bandwidths = {{1, 1, 30}, {2, 2, 70}, {2, 4, 60}};
  EXPECT_EQ(limits.bandwidth(), 70);
  EXPECT_EQ(limits.peak(kernels::WeightType::q8_0), 1);
  EXPECT_EQ(limits.peak(kernels::WeightType::q6_k), 2);
  EXPECT_EQ(limits.peak(kernels::WeightType::q5_0), 4);
  EXPECT_EQ(limits.peak(kernels::WeightType::q4_k), 8);
  EXPECT_EQ(limits.peak(kernels::WeightType::f16), 16);
}

TEST(BenchSeries, MedianAndSpread) {
  EXPECT_EQ((Series{{3, 1, 2}}).median(), 2);
  EXPECT_EQ((Series{{4, 1, 2, 3}}).median(), 2.5);
  EXPECT_EQ((Series{{3, 1, 2}}).spread(), 1);
  EXPECT_EQ(Series{}.median(), 0);
}

TEST(BenchDisturbance, OthersAreWhatThisProcessDidNotUse) {
  const tests::TempDir dir;
  const std::string path = dir.write("stat", "cpu  1000 0 1000 5000 5000 0 0 0 0 0\n");
  Disturbance disturbance(path);
  dir.write("stat", "cpu  1000 0 1000 9000 9000 0 0 0 0 0\n");  // idle and waiting do not count
  EXPECT_EQ(disturbance.since_last().others, 0);
  dir.write("stat", "cpu  101000 100 1100 9000 9000 0 0 300 0 0\n");
  const double seconds = 100500.0 / static_cast<double>(::sysconf(_SC_CLK_TCK));
  EXPECT_NEAR(disturbance.since_last().others, seconds, 1);
  EXPECT_EQ((Disturbance::Usage{10, 1}).share(), 0.1);
  EXPECT_EQ((Disturbance::Usage{0.1, 0.1}).share(), 0);  // shorter than the ticks can say
}

TEST(BenchProgramRun, SaysWhatFailed) {
  EXPECT_EQ(run_program({"/bin/sh", "-c", "echo out; echo err >&2"}), "out\n");
  const auto message = [](const std::vector<std::string>& command) -> std::string {
    try {
      run_program(command);
    } catch (const std::runtime_error& e) {
      return e.what();
    }
    return {};
  };
  EXPECT_NE(message({"/bin/sh", "-c", "echo why >&2; exit 3"}).find("failed: why"), std::string::npos);
  EXPECT_NE(message({"/no/such/program"}).find("cannot be started"), std::string::npos);
}

}  // namespace
}  // namespace ellm::bench
