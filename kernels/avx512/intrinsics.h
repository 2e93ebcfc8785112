// The intrinsics of the AVX-512 level: the compiler's, or in the tests the same names over AVX2.
#pragma once
#ifdef ELLM_EMULATE_AVX512
#include "tests/kernels/emulated_avx512.h"
#else
#include <immintrin.h>
#endif
