// The kernel levels that a test runs: what this CPU has, and the emulated AVX-512 and AMX wherever there is AVX2.
#pragma once
#include <algorithm>
#include <string>
#include <vector>

#include "kernels/kernel_set.h"

namespace ellm::kernels {

/// Scalar first.
const std::vector<const KernelSet*>& levels_under_test();

/// Those among them whose `function` none before has: levels share functions.
template <class F>
std::vector<const KernelSet*> levels_with_own(F KernelSet::* function) {
  std::vector<const KernelSet*> own;
  for (const KernelSet* set : levels_under_test())
    if (std::ranges::none_of(own, [&](const KernelSet* other) { return other->*function == set->*function; }))
      own.push_back(set);
  return own;
}

/// The compiler's word (CPUID with XCR0), and the kernel's: what it grants, this process then has.
bool cpu_has_amx();

/// What repacks at this level.
Repack repack_of(const KernelSet& set);

/// For parameterised tests: the set's name with underscores.
std::string level_label(const KernelSet& set);

}  // namespace ellm::kernels
