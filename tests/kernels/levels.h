// The kernel levels that a test runs: what this CPU has, and the emulated AVX-512 wherever there is AVX2.
#pragma once
#include <string>
#include <vector>

#include "kernels/kernel_set.h"

namespace ellm::kernels {

/// Scalar first.
const std::vector<const KernelSet*>& levels_under_test();

/// What repacks at this level.
Repack repack_of(const KernelSet& set);

/// For parameterised tests: the set's name with underscores.
std::string level_label(const KernelSet& set);

}  // namespace ellm::kernels
