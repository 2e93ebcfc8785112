// How a level's functions become a row of the table. The tests make one more row with it, of the emulated AVX-512.
#pragma once
#include "kernels/kernel_set.h"

#define ELLM_MATMUL(ns) ns::matmul, ns::pack_q8, ns::pack_f32
#define ELLM_ATTENTION(ns) \
  ns::attention, ns::attention_partial, ns::attention_merge, ns::store_k, ns::store_v, ns::remove_key_mean
#define ELLM_ROWS(ns)                                                                            \
  ns::rms_norm, ns::rope, ns::silu_mul, ns::gelu_mul, ns::soft_cap, ns::argmax, ns::log_sum_exp, \
      ns::tempered_log_sum_exp
#define ELLM_NO_ATTENTION nullptr, nullptr, nullptr, nullptr, nullptr, nullptr
#define ELLM_NO_ROWS nullptr, nullptr, nullptr, nullptr, nullptr, nullptr, nullptr, nullptr
