// Which kernel level this CPU runs: the best it has, or the one that was asked for.
#include <stdexcept>

#include "daemon/model/forward.h"
#include "daemon/runtime/cpu_features.h"

namespace ellm::model {

const kernels::KernelSet& choose_kernels(const std::string& name) {
  using kernels::Level;
  const runtime::CpuFeatures cpu = runtime::detect_cpu();
  const auto missing = [&](const char* needs) {
    return std::runtime_error("kernels = \"" + name + "\": this CPU (" + cpu.model +
                              ") or its operating system lacks " + needs + "; use \"auto\"");
  };
  if (name == "auto") {
    return *kernels::kernel_set(cpu.runs_amx()      ? Level::amx
                                : cpu.runs_avx512() ? Level::avx512
                                : cpu.runs_avx2()   ? Level::avx2
                                                    : Level::scalar);
  }
  if (name == "scalar") return *kernels::kernel_set(Level::scalar);
  if (name == "avx2") {
    if (!cpu.runs_avx2()) throw missing("AVX2, FMA or F16C");
    return *kernels::kernel_set(Level::avx2);
  }
  if (name == "avx512") {
    if (!cpu.runs_avx512()) throw missing("one of AVX-512 F, BW, DQ, VL, VNNI");
    return *kernels::kernel_set(Level::avx512);
  }
  if (name == "amx") {
    if (!cpu.runs_amx()) throw missing("AMX-TILE, AMX-INT8, the permission to use tiles or what avx512 needs");
    return *kernels::kernel_set(Level::amx);
  }
  throw std::runtime_error("kernels = \"" + name + "\": expected auto, scalar, avx2, avx512 or amx");
}

}  // namespace ellm::model
