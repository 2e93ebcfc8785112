// The exponential for one value: the scalar lanes' first. Baseline code; any thread.
#include "kernels/exp.h"

#include "kernels/lanes/exp.h"
#include "kernels/scalar/lanes.h"

namespace ellm::kernels {

float exp_spec(float x) noexcept { return exp_any(ScalarLanes::broadcast(x)).first(); }

}  // namespace ellm::kernels
