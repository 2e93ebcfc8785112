#include "tests/kernels/levels.h"

#include <gtest/gtest.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cstdlib>
#include <sstream>

#include "tests/kernels/emulated_level.h"

namespace ellm::kernels {
namespace {

// The compiler's own detection (CPUID with XCR0), so that a mistake of ours can't hide a level from its test.
bool cpu_has_avx2() {
  return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") && __builtin_cpu_supports("f16c");
}
bool cpu_has_avx512() {
  return cpu_has_avx2() && __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
         __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl") &&
         __builtin_cpu_supports("avx512vnni");
}

}  // namespace

bool cpu_has_amx() {
  constexpr int kRequestPermission = 0x1023, kTileData = 18;  // ARCH_REQ_XCOMP_PERM
  return cpu_has_avx512() && __builtin_cpu_supports("amx-tile") && __builtin_cpu_supports("amx-int8") &&
         syscall(SYS_arch_prctl, kRequestPermission, kTileData) == 0;
}

const std::vector<const KernelSet*>& levels_under_test() {
  static const std::vector<const KernelSet*> sets = [] {
    std::vector<const KernelSet*> found{kernel_set(Level::scalar)};
    if (cpu_has_avx2()) {
      found.push_back(kernel_set(Level::avx2));
      found.push_back(&emulated_avx512_set());
      found.push_back(&emulated_amx_set());
    }
    if (cpu_has_avx512()) found.push_back(kernel_set(Level::avx512));
    if (cpu_has_amx()) found.push_back(kernel_set(Level::amx));
    return found;
  }();
  return sets;
}

Repack repack_of(const KernelSet& set) {
  const bool emulated = &set == &emulated_avx512_set() || &set == &emulated_amx_set();
  return emulated ? emulated_repack() : repack_of(set.level);
}

std::string level_label(const KernelSet& set) {
  std::string label = set.name;
  for (char& c : label) {
    if (c == ' ') c = '_';
  }
  return label;
}

// Says what ran, and fails where a level that ELLM_REQUIRE_LEVELS names ("avx2,avx512") did not.
TEST(Levels, RunsTheRequiredOnes) {
  std::string names;
  for (const KernelSet* set : levels_under_test()) {
    ASSERT_NE(set, nullptr);
    for (const KernelSet* other : levels_under_test()) {
      if (other != set) {
        EXPECT_NE(set->matmul, other->matmul) << set->name << " and " << other->name << " are the same code";
      }
    }
    names += (names.empty() ? "" : ",") + std::string(set->name);
  }
  RecordProperty("levels", names);
  std::cout << "kernel levels that run here: " << names << "\n";
  const char* required = std::getenv("ELLM_REQUIRE_LEVELS");
  std::istringstream list(required == nullptr ? "" : required);
  for (std::string name; std::getline(list, name, ',');) {
    bool found = false;
    for (const KernelSet* set : levels_under_test()) found = found || set->name == name;
    EXPECT_TRUE(found) << "required level " << name << " did not run";
  }
}

}  // namespace ellm::kernels
