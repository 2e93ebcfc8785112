// The verdict on CPUID and XCR0, and this machine's against what the kernel says in /proc/cpuinfo.
#include "daemon/runtime/cpu_features.h"

#include <gtest/gtest.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <fstream>
#include <set>
#include <sstream>

using namespace ellm::runtime;

namespace {

/// A processor that has everything, under an operating system that saves everything. Register bits: Intel SDM.
CpuidAnswers everything() {
  CpuidAnswers answers;
  answers.leaf1_ecx = 1u << 12 | 1u << 27 | 1u << 28 | 1u << 29;            // FMA OSXSAVE AVX F16C
  answers.leaf7_ebx = 1u << 5 | 1u << 16 | 1u << 17 | 1u << 30 | 1u << 31;  // AVX2 AVX512 F DQ BW VL
  answers.leaf7_ecx = 1u << 11;                                             // AVX512_VNNI
  answers.leaf7_edx = 1u << 24 | 1u << 25;                                  // AMX-TILE AMX-INT8
  answers.xcr0 = 0x600e7;
  answers.tiles_granted = true;
  return answers;
}

TEST(CpuFeatures, AllThere) {
  const CpuFeatures features = features_of(everything());
  EXPECT_TRUE(features.runs_avx2());
  EXPECT_TRUE(features.runs_avx512());
  EXPECT_TRUE(features.runs_amx());
}

TEST(CpuFeatures, NothingThere) {
  EXPECT_FALSE(features_of({}).runs_avx2());
  EXPECT_FALSE(features_of({}).runs_avx512());
  EXPECT_FALSE(features_of({}).runs_amx());
}

TEST(CpuFeatures, StateThatIsNotSavedDisablesTheLevel) {
  CpuidAnswers answers = everything();
  answers.xcr0 = 0x07;  // ymm, not zmm
  EXPECT_TRUE(features_of(answers).runs_avx2());
  EXPECT_FALSE(features_of(answers).runs_avx512());
  EXPECT_FALSE(features_of(answers).avx512f);
  for (uint64_t missing : {0x20, 0x40, 0x80}) {  // masks, upper halves, upper registers
    answers.xcr0 = 0x600e7 & ~missing;
    EXPECT_TRUE(features_of(answers).runs_avx2());
    EXPECT_FALSE(features_of(answers).runs_avx512()) << missing;
    EXPECT_FALSE(features_of(answers).runs_amx()) << missing;
  }
  for (uint64_t missing : {0x20000, 0x40000}) {  // the tiles' configuration, their data
    answers.xcr0 = 0x600e7 & ~missing;
    EXPECT_TRUE(features_of(answers).runs_avx512());
    EXPECT_FALSE(features_of(answers).amx_tile) << missing;
    EXPECT_FALSE(features_of(answers).runs_amx()) << missing;
  }
  answers.xcr0 = 0x03;  // xmm only
  EXPECT_FALSE(features_of(answers).runs_avx2());
  EXPECT_FALSE(features_of(answers).runs_avx512());
}

TEST(CpuFeatures, TilesCountIfTheyAreGranted) {
  CpuidAnswers answers = everything();
  answers.tiles_granted = false;
  EXPECT_TRUE(features_of(answers).runs_avx512());
  EXPECT_FALSE(features_of(answers).amx_tile);
  EXPECT_FALSE(features_of(answers).runs_amx());
}

TEST(CpuFeatures, WithoutOsxsaveXcr0IsNotBelieved) {
  CpuidAnswers answers = everything();
  answers.leaf1_ecx &= ~(1u << 27);
  EXPECT_FALSE(features_of(answers).runs_avx2());
  EXPECT_FALSE(features_of(answers).runs_avx512());
  EXPECT_FALSE(features_of(answers).runs_amx());
}

TEST(CpuFeatures, EachMissingBitCosts) {
  for (int bit : {12, 28, 29}) {
    CpuidAnswers answers = everything();
    answers.leaf1_ecx &= ~(1u << bit);
    EXPECT_FALSE(features_of(answers).runs_avx2()) << bit;
    EXPECT_FALSE(features_of(answers).runs_avx512()) << bit;
  }
  for (int bit : {5, 16, 17, 30, 31}) {
    CpuidAnswers answers = everything();
    answers.leaf7_ebx &= ~(1u << bit);
    EXPECT_EQ(features_of(answers).runs_avx2(), bit != 5) << bit;
    EXPECT_FALSE(features_of(answers).runs_avx512()) << bit;
  }
  for (int bit : {24, 25}) {
    CpuidAnswers answers = everything();
    answers.leaf7_edx &= ~(1u << bit);
    EXPECT_TRUE(features_of(answers).runs_avx512()) << bit;
    EXPECT_FALSE(features_of(answers).runs_amx()) << bit;
  }
  CpuidAnswers answers = everything();
  answers.leaf7_ecx = 0;
  EXPECT_TRUE(features_of(answers).runs_avx2());
  EXPECT_FALSE(features_of(answers).runs_avx512());
  EXPECT_FALSE(features_of(answers).runs_amx());
}

TEST(CpuFeatures, AgreesWithTheKernel) {
  std::ifstream in("/proc/cpuinfo");
  std::set<std::string> flags;
  std::string model;
  for (std::string line; std::getline(in, line) && !line.empty();) {
    const size_t colon = line.find(": ");
    if (line.rfind("flags", 0) == 0) {
      std::istringstream words(line.substr(colon + 2));
      for (std::string word; words >> word;) flags.insert(word);
    }
    if (line.rfind("model name", 0) == 0) model = line.substr(colon + 2);
  }
  if (flags.empty()) GTEST_SKIP() << "no flags in /proc/cpuinfo";
  const CpuFeatures features = detect_cpu();
  const auto has = [&](const char* flag) { return flags.count(flag) > 0; };
  EXPECT_EQ(features.avx2, has("avx2"));
  EXPECT_EQ(features.fma, has("fma"));
  EXPECT_EQ(features.f16c, has("f16c"));
  EXPECT_EQ(features.avx512f, has("avx512f"));
  EXPECT_EQ(features.avx512bw, has("avx512bw"));
  EXPECT_EQ(features.avx512dq, has("avx512dq"));
  EXPECT_EQ(features.avx512vl, has("avx512vl"));
  EXPECT_EQ(features.avx512_vnni, has("avx512_vnni"));
  const bool granted = syscall(SYS_arch_prctl, 0x1023, 18) == 0;
  EXPECT_EQ(features.amx_tile, has("amx_tile") && granted);
  EXPECT_EQ(features.amx_int8, has("amx_int8") && granted);
  EXPECT_EQ(features.model, model.substr(0, model.find_last_not_of(' ') + 1));
}

}  // namespace
