// CPUID and XGETBV (Intel SDM volume 2, CPUID; volume 1, 13.3 and 14.3). A level counts only if the operating system
// and the hypervisor save its registers: a processor that has AVX-512 under a kernel that masks it says so in XCR0
// alone. Tile data (8 KB a thread) Linux saves for those processes that have asked for it
// (Documentation/arch/x86/xstate.rst).
#include "daemon/runtime/cpu_features.h"

#include <cpuid.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cstring>

namespace ellm::runtime {
namespace {

constexpr uint64_t kXcr0Ymm = 0x06;       // xmm, ymm
constexpr uint64_t kXcr0Zmm = 0xe6;       // and masks, upper halves of zmm0-15, zmm16-31
constexpr uint64_t kXcr0Tiles = 0x60000;  // their configuration, their data
constexpr int kOsxsave = 27;
constexpr int kRequestPermission = 0x1023, kTileData = 18;  // ARCH_REQ_XCOMP_PERM: headers before Linux 5.16 lack it

bool bit(uint32_t word, int number) { return (word >> number) & 1; }

uint64_t read_xcr0() {
  uint32_t low, high;
  __asm__ volatile("xgetbv" : "=a"(low), "=d"(high) : "c"(0));
  return uint64_t{high} << 32 | low;
}

CpuidAnswers ask() {
  CpuidAnswers answers;
  unsigned eax, ebx, ecx, edx;
  if (__get_cpuid(1, &eax, &ebx, &ecx, &edx)) answers.leaf1_ecx = ecx;
  if (__get_cpuid_count(7, 0, &eax, &ebx, &ecx, &edx)) {
    answers.leaf7_ebx = ebx;
    answers.leaf7_ecx = ecx;
    answers.leaf7_edx = edx;
  }
  if (bit(answers.leaf1_ecx, kOsxsave)) answers.xcr0 = read_xcr0();  // xgetbv is illegal without OSXSAVE
  return answers;
}

std::string model_name() {
  unsigned words[12];
  for (unsigned i = 0; i < 3; ++i) {
    unsigned* w = words + 4 * i;
    if (!__get_cpuid(0x80000002 + i, &w[0], &w[1], &w[2], &w[3])) return "unknown x86-64 CPU";
  }
  char text[sizeof(words) + 1] = {};
  std::memcpy(text, words, sizeof(words));
  std::string name(text);
  const size_t first = name.find_first_not_of(' ');
  if (first == std::string::npos) return "unknown x86-64 CPU";
  return name.substr(first, name.find_last_not_of(' ') - first + 1);
}

}  // namespace

CpuFeatures features_of(const CpuidAnswers& a) {
  CpuFeatures features;
  const bool os_saves = bit(a.leaf1_ecx, kOsxsave);
  const bool ymm = os_saves && bit(a.leaf1_ecx, 28) && (a.xcr0 & kXcr0Ymm) == kXcr0Ymm;
  const bool zmm = ymm && (a.xcr0 & kXcr0Zmm) == kXcr0Zmm;
  features.avx2 = ymm && bit(a.leaf7_ebx, 5);
  features.fma = ymm && bit(a.leaf1_ecx, 12);
  features.f16c = ymm && bit(a.leaf1_ecx, 29);
  features.avx512f = zmm && bit(a.leaf7_ebx, 16);
  features.avx512dq = zmm && bit(a.leaf7_ebx, 17);
  features.avx512bw = zmm && bit(a.leaf7_ebx, 30);
  features.avx512vl = zmm && bit(a.leaf7_ebx, 31);
  features.avx512_vnni = zmm && bit(a.leaf7_ecx, 11);
  const bool tiles = os_saves && a.tiles_granted && (a.xcr0 & kXcr0Tiles) == kXcr0Tiles;
  features.amx_tile = tiles && bit(a.leaf7_edx, 24);
  features.amx_int8 = tiles && bit(a.leaf7_edx, 25);
  return features;
}

CpuFeatures detect_cpu() {
  CpuidAnswers answers = ask();
  if ((answers.xcr0 & kXcr0Tiles) == kXcr0Tiles)
    answers.tiles_granted = ::syscall(SYS_arch_prctl, kRequestPermission, kTileData) == 0;
  CpuFeatures features = features_of(answers);
  features.model = model_name();
  return features;
}

CpuFeatures processor_features() {
  CpuidAnswers answers = ask();
  answers.leaf1_ecx |= 1u << kOsxsave;
  answers.xcr0 = ~uint64_t{0};
  answers.tiles_granted = true;
  return features_of(answers);
}

}  // namespace ellm::runtime
