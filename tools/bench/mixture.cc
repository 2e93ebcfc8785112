#include "tools/bench/mixture.h"

namespace ellm::bench {
namespace {

using kernels::WeightType;

struct Entry {
  Mixture mix;
  const char* name;
  WeightType base;     // of what no rule names
  uint32_t file_type;  // llama_ftype
};
constexpr Entry kMixtures[] = {
    {Mixture::f16, "f16", WeightType::f16, 1},           {Mixture::bf16, "bf16", WeightType::bf16, 32},
    {Mixture::q8_0, "q8_0", WeightType::q8_0, 7},        {Mixture::q4_0, "q4_0", WeightType::q4_0, 2},
    {Mixture::q4_1, "q4_1", WeightType::q4_1, 3},        {Mixture::q5_0, "q5_0", WeightType::q5_0, 8},
    {Mixture::q5_1, "q5_1", WeightType::q5_1, 9},        {Mixture::q2_k, "q2_k", WeightType::q2_k, 10},
    {Mixture::q3_k_m, "q3_k_m", WeightType::q3_k, 12},   {Mixture::q4_k_s, "q4_k_s", WeightType::q4_k, 14},
    {Mixture::q4_k_m, "q4_k_m", WeightType::q4_k, 15},   {Mixture::q5_k_s, "q5_k_s", WeightType::q5_k, 16},
    {Mixture::q5_k_m, "q5_k_m", WeightType::q5_k, 17},   {Mixture::q6_k, "q6_k", WeightType::q6_k, 18},
    {Mixture::iq4_nl, "iq4_nl", WeightType::iq4_nl, 25}, {Mixture::iq4_xs, "iq4_xs", WeightType::iq4_xs, 30},
};

const Entry& entry(Mixture mix) {
  for (const Entry& e : kMixtures)
    if (e.mix == mix) return e;
  return kMixtures[0];
}

/// The layers that get more bits: the first and last eighths, and every third between.
bool use_more_bits(uint32_t layer, uint32_t layers) {
  return layer < layers / 8 || layer >= 7 * layers / 8 || (layer - layers / 8) % 3 == 2;
}

WeightType value_type(Mixture mix, const Shape& s, uint32_t layer, WeightType base) {
  const bool shared = s.heads / s.kv_heads >= 4;
  WeightType type = base;
  switch (mix) {
    case Mixture::q2_k: type = shared ? WeightType::q4_k : WeightType::q3_k; break;
    case Mixture::q3_k_m: type = layer < 2 ? WeightType::q5_k : WeightType::q4_k; break;
    case Mixture::q4_k_s: type = layer < 4 ? WeightType::q5_k : base; break;
    case Mixture::q4_k_m:
    case Mixture::q5_k_m: type = use_more_bits(layer, s.layers) ? WeightType::q6_k : base; break;
    case Mixture::iq4_nl:
    case Mixture::iq4_xs: type = shared ? WeightType::q5_k : base; break;
    default: break;
  }
  const bool is_70b =
      (s.architecture == "llama" || s.architecture == "qwen2") && s.layers == 80 && s.heads != s.kv_heads;
  if (is_70b && (type == WeightType::q3_k || type == WeightType::q4_k)) type = WeightType::q5_k;
  return s.experts == 8 ? WeightType::q8_0 : type;
}

WeightType down_type(Mixture mix, const Shape& s, uint32_t layer, WeightType base) {
  switch (mix) {
    case Mixture::q2_k: return WeightType::q3_k;
    case Mixture::q3_k_m: return layer < s.layers / 16 ? WeightType::q5_k : WeightType::q4_k;
    case Mixture::q4_k_m:
    case Mixture::q5_k_m: return use_more_bits(layer, s.layers) ? WeightType::q6_k : base;
    case Mixture::q4_k_s:
    case Mixture::iq4_nl:
    case Mixture::iq4_xs: return layer < s.layers / 8 ? WeightType::q5_k : base;
    default: return base;
  }
}

WeightType attention_output_type(Mixture mix, const Shape& s, WeightType base) {
  if (s.experts == 8) {
    const bool small = mix == Mixture::q2_k || mix == Mixture::q3_k_m || mix == Mixture::q4_k_s ||
                       mix == Mixture::q4_k_m || mix == Mixture::iq4_nl || mix == Mixture::iq4_xs;
    return small ? WeightType::q5_k : base;
  }
  if (mix == Mixture::q2_k) return WeightType::q3_k;
  return mix == Mixture::q3_k_m ? WeightType::q4_k : base;
}

WeightType wanted_type(Mixture mix, const Shape& s, std::string_view role, uint32_t layer, uint64_t columns,
                       WeightType base) {
  if (role == "output.weight" || (role == "token_embd.weight" && s.tied)) {
    if (columns % kernels::block_shape(base).weights != 0) return WeightType::q8_0;
    return base == WeightType::q8_0 ? base : WeightType::q6_k;
  }
  if (role == "attn_v.weight" || role == "attn_qkv.weight") return value_type(mix, s, layer, base);
  if (role == "attn_k.weight" && s.experts == 8) return WeightType::q8_0;
  if (role.starts_with("ffn_down")) return down_type(mix, s, layer, base);
  if (role == "attn_output.weight") return attention_output_type(mix, s, base);
  return base;
}

/// Rows that are no multiple of the block.
WeightType fallback(WeightType type, uint64_t columns) {
  if (columns % kernels::block_shape(type).weights == 0) return type;
  switch (type) {
    case WeightType::iq4_xs: type = WeightType::iq4_nl; break;
    case WeightType::q2_k:
    case WeightType::q3_k: type = WeightType::q4_0; break;
    case WeightType::q4_k: type = WeightType::q5_0; break;
    case WeightType::q5_k: type = WeightType::q5_1; break;
    case WeightType::q6_k: type = WeightType::q8_0; break;
    default: break;
  }
  return columns % kernels::block_shape(type).weights == 0 ? type : WeightType::f16;
}

}  // namespace

std::optional<Mixture> find_mixture(std::string_view name) {
  for (const Entry& e : kMixtures)
    if (name == e.name) return e.mix;
  return std::nullopt;
}

std::string mixture_names() {
  std::string all;
  for (const Entry& e : kMixtures) all += (all.empty() ? "" : ", ") + std::string(e.name);
  return all;
}

uint32_t file_type(Mixture mix) { return entry(mix).file_type; }

WeightType tensor_type(Mixture mix, const Shape& shape, std::string_view role, uint32_t layer, uint64_t columns) {
  const WeightType base = entry(mix).base;
  if (role == "ffn_gate_inp.weight") return WeightType::f32;  // routers stay as they are
  if (!kernels::is_quantised(base)) return base;
  return fallback(wanted_type(mix, shape, role, layer, columns, base), columns);
}

}  // namespace ellm::bench
