// RoPE hyper-parameters as GGUF writes them. Llama 3's scaling has no keys of its own: conversion computes a factor for
// each pair into tensor rope_freqs.weight.
#include <span>

#include "daemon/model/config_reader.h"
#include "kernels/weight_type.h"

namespace ellm::model {
namespace {

// Wider than any model needs, narrow enough that angles stay within the range of exact reduction.
constexpr double kLeastFactor = 1e-3, kMostFactor = 1e6;

std::vector<float> read_frequency_factors(const format::Gguf& file, const char* tensor_name, uint32_t pairs) {
  const std::string name = std::string("tensor '") + tensor_name + "': ";
  const format::Tensor* tensor = file.find_tensor(tensor_name);
  if (!tensor) return {};
  if (tensor->type->id != static_cast<uint32_t>(kernels::WeightType::f32))
    throw file.error(name + "type " + std::string(tensor->type->name) + ", expected F32");
  if (tensor->elements() != pairs || tensor->dims[0] != pairs)
    throw file.error(name + std::to_string(tensor->elements()) + " values, expected " + std::to_string(pairs) +
                     ", one for each rotated pair");
  std::vector<float> factors(pairs);
  file.read(*tensor, 0, std::as_writable_bytes(std::span(factors)));
  for (const float factor : factors)
    if (!(factor >= kLeastFactor && factor <= kMostFactor))
      throw file.error(name + "a factor is " + std::to_string(factor) + ", expected 0.001 to 1e6");
  return factors;
}

/// The stretch of linear and yarn scaling; older files have it under another key.
std::optional<double> find_factor(const ConfigReader& reader) {
  if (const auto factor = reader.find_number("rope.scaling.factor", kLeastFactor, kMostFactor)) return factor;
  return reader.find_number("rope.scale_linear", kLeastFactor, kMostFactor);
}

void read_yarn(const ConfigReader& reader, uint32_t context, RopeConfig& rope) {
  constexpr uint32_t kLongestContext = UINT32_MAX;
  if (!find_factor(reader)) throw reader.error("rope.scaling.factor", "is missing, yarn scaling needs it");
  rope.original_context =
      reader.find_size("rope.scaling.original_context_length", 1, kLongestContext).value_or(context);
  rope.yarn_beta_fast = reader.find_number("rope.scaling.yarn_beta_fast", 1e-3, 1e6).value_or(32);
  rope.yarn_beta_slow = reader.find_number("rope.scaling.yarn_beta_slow", 1e-3, 1e6).value_or(1);
  // Negative means "as the method has it".
  const double extrapolation = reader.find_number("rope.scaling.yarn_ext_factor", -1, 1).value_or(1);
  rope.yarn_extrapolation = extrapolation < 0 ? 1 : extrapolation;
  // This key counts only where the method's own magnitude is off.
  const double own = reader.find_number("rope.scaling.yarn_attn_factor", 1e-3, 1e3).value_or(1);
  if (rope.yarn_extrapolation == 0) rope.yarn_attention_factor *= own;
}

/// Phi's "longrope": one set of factors for requests within the original context, one for longer ones. Which requests
/// there will be is settled once, by the context that the model is loaded with, so that the keys of a prefix never
/// change.
void read_longrope(const ConfigReader& reader, uint32_t trained, uint32_t context, RopeConfig& rope) {
  rope.scaling = RopeScaling::longrope;
  rope.original_context = reader.find_size("rope.scaling.original_context_length", 1, UINT32_MAX).value_or(trained);
  rope.long_factors = context > rope.original_context;
  const char* name = rope.long_factors ? "rope_factors_long.weight" : "rope_factors_short.weight";
  rope.frequency_factors = read_frequency_factors(reader.file(), name, rope.dimensions / 2);
  if (rope.frequency_factors.empty())
    throw reader.file().error(std::string("tensor '") + name + "' is missing, longrope scaling needs it");
}

}  // namespace

RopeConfig read_rope_config(const ConfigReader& reader, uint32_t head_dim, uint32_t trained, uint32_t context) {
  RopeConfig rope;
  rope.dimensions = reader.find_size("rope.dimension_count", 2, head_dim).value_or(head_dim);
  if (rope.dimensions % 2 != 0)
    throw reader.error("rope.dimension_count", std::to_string(rope.dimensions) + ", expected an even number");
  rope.base = reader.find_number("rope.freq_base", 2, 1e15).value_or(10000);
  rope.frequency_factors = read_frequency_factors(reader.file(), "rope_freqs.weight", rope.dimensions / 2);
  rope.yarn_attention_factor = reader.find_number("rope.scaling.attn_factor", 1e-3, 1e3).value_or(1);

  const bool factors = reader.file().find_tensor("rope_factors_long.weight") != nullptr;
  const std::string_view type = reader.find_string("rope.scaling.type").value_or(factors ? "longrope" : "linear");
  if (type == "none") {
    rope.scaling = RopeScaling::none;
  } else if (type == "linear") {
    rope.factor = find_factor(reader).value_or(1);
    if (rope.factor != 1) rope.scaling = RopeScaling::linear;
  } else if (type == "yarn") {
    rope.scaling = RopeScaling::yarn;
    rope.factor = find_factor(reader).value_or(1);
    read_yarn(reader, trained, rope);
  } else if (type == "longrope" || type == "su") {
    read_longrope(reader, trained, context, rope);
  } else if (type != "llama3") {
    throw reader.error("rope.scaling.type",
                       "unknown scaling " + format::quoted(type) + ", expected none, linear, yarn or longrope");
  }
  if (type == "llama3" && rope.frequency_factors.empty())
    throw reader.file().error("tensor 'rope_freqs.weight' is missing, llama3 scaling needs it");
  if (rope.scaling == RopeScaling::none && !rope.frequency_factors.empty()) rope.scaling = RopeScaling::llama3;
  return rope;
}

}  // namespace ellm::model
