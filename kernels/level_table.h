// How a level's functions become a row of the table. The tests make more rows with it, of the emulated levels.
#pragma once
#include "kernels/kernel_set.h"

#define ELLM_PACKING(ns) ns::pack_q8, ns::pack_f32
#define ELLM_ATTENTION(ns) \
  ns::attention, ns::attention_partial, ns::attention_merge, ns::store_k, ns::store_v, ns::remove_key_mean
#define ELLM_ROWS(ns)                                                                            \
  ns::rms_norm, ns::rope, ns::silu_mul, ns::gelu_mul, ns::soft_cap, ns::argmax, ns::log_sum_exp, \
      ns::tempered_log_sum_exp
