// What this CPU and its operating system can execute (CPUID with XCR0). Any thread.
#pragma once
#include <cstdint>
#include <string>

namespace ellm::runtime {

struct CpuFeatures {
  bool avx2 = false, fma = false, f16c = false;                                                     // OS saves ymm
  bool avx512f = false, avx512bw = false, avx512dq = false, avx512vl = false, avx512_vnni = false;  // OS saves zmm
  bool amx_tile = false, amx_int8 = false;  // OS saves tiles, and this process may use them
  std::string model;                        // "AMD EPYC 9654"

  bool runs_avx2() const { return avx2 && fma && f16c; }
  bool runs_avx512() const { return runs_avx2() && avx512f && avx512bw && avx512dq && avx512vl && avx512_vnni; }
  bool runs_amx() const { return runs_avx512() && amx_tile && amx_int8; }
};

/// What the processor answers: CPUID registers, and the state components that the operating system saves (XCR0).
struct CpuidAnswers {
  uint32_t leaf1_ecx = 0, leaf7_ebx = 0, leaf7_ecx = 0, leaf7_edx = 0;  // leaf 7: subleaf 0
  uint64_t xcr0 = 0;                                                    // 0 without OSXSAVE
  bool tiles_granted = false;  // to this process: Linux gives tile data to those that ask for it
};
/// The verdict on them, without the model's name.
CpuFeatures features_of(const CpuidAnswers& answers);

/// Also asks for tile data where there is any: then all threads have it, those that run already, too.
CpuFeatures detect_cpu();

/// What the processor alone says, whatever the operating system has enabled.
CpuFeatures processor_features();

}  // namespace ellm::runtime
