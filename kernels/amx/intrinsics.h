// The intrinsics of the AMX level: the compiler's, or in the tests the same names over AVX2 and plain loops.
#pragma once
#ifdef ELLM_EMULATE_AVX512
#include "tests/kernels/emulated_amx.h"
#include "tests/kernels/emulated_avx512.h"
#else
#include <immintrin.h>
#endif
