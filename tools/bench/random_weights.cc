#include "tools/bench/random_weights.h"

#include <cstring>

#include "kernels/blocks.h"

namespace ellm::bench {
namespace {

using kernels::WeightType;

/// Where a block's halves stand and what makes its uniformly random codes weights of deviation 1 about 0: the scale
/// `d`, and the offset `m` (the minimum's half; signed as the format adds or subtracts it).
struct Scales {
  int d_at = -1, m_at = -1;
  double d = 0, m = 0;
};

// Codes of b bits have deviation 2^b / sqrt(12). K-quants multiply them with random scales of 6 (4, 8) bits: their mean
// square times the codes', the minimum's mean set against the codes' mean.
Scales scales(WeightType type) {
  switch (type) {
    case WeightType::q4_0: return {.d_at = 0, .d = 1 / 4.6};
    case WeightType::q4_1: return {.d_at = 0, .m_at = 2, .d = 1 / 4.6, .m = -7.5 / 4.6};
    case WeightType::q5_0: return {.d_at = 0, .d = 1 / 9.2};
    case WeightType::q5_1: return {.d_at = 0, .m_at = 2, .d = 1 / 9.2, .m = -15.5 / 9.2};
    case WeightType::q8_0: return {.d_at = 0, .d = 1 / 73.9};
    case WeightType::q2_k: return {.d_at = 80, .m_at = 82, .d = 1 / 14.8, .m = 1.5 / 14.8};
    case WeightType::q3_k: return {.d_at = 108, .d = 1 / 43.0};
    case WeightType::q4_k: return {.d_at = 0, .m_at = 2, .d = 1 / 268.0, .m = 7.5 / 268.0};
    case WeightType::q5_k: return {.d_at = 0, .m_at = 2, .d = 1 / 540.0, .m = 15.5 / 540.0};
    case WeightType::q6_k: return {.d_at = 208, .d = 1 / 1366.0};
    case WeightType::iq4_nl: return {.d_at = 0, .d = 1 / 68.0};
    case WeightType::iq4_xs: return {.d_at = 0, .d = 1 / 1270.0};
    default: return {};
  }
}

void put_half(std::byte* at, double value) {
  const uint16_t half = kernels::f32_to_f16(static_cast<float>(value));
  std::memcpy(at, &half, sizeof half);
}

void random_bytes(Random& random, std::span<std::byte> to) {
  size_t i = 0;
  for (; i + 8 <= to.size(); i += 8) {
    const uint64_t word = random.next();
    std::memcpy(to.data() + i, &word, 8);
  }
  const uint64_t word = random.next();
  std::memcpy(to.data() + i, &word, to.size() - i);
}

/// F32, F16, BF16: uniform, of the wanted deviation.
void random_floats(WeightType type, float deviation, Random& random, std::span<std::byte> to) {
  const float width = deviation * 1.7320508f;  // sqrt(3)
  const size_t size = type == WeightType::f32 ? 4 : 2;
  for (size_t i = 0; i < to.size(); i += size) {
    const float x = random.uniform() * width;
    const uint16_t half = type == WeightType::f16 ? kernels::f32_to_f16(x) : kernels::f32_to_bf16(x);
    std::memcpy(to.data() + i, size == 4 ? static_cast<const void*>(&x) : &half, size);
  }
}

}  // namespace

void random_weights(WeightType type, float deviation, Random& random, std::span<std::byte> to) {
  if (!kernels::is_quantised(type)) return random_floats(type, deviation, random, to);
  random_bytes(random, to);
  const Scales s = scales(type);
  for (size_t at = 0; at < to.size(); at += kernels::block_shape(type).bytes) {
    if (s.d_at >= 0) put_half(&to[at + static_cast<size_t>(s.d_at)], s.d * deviation);
    if (s.m_at >= 0) put_half(&to[at + static_cast<size_t>(s.m_at)], s.m * deviation);
  }
}

}  // namespace ellm::bench
