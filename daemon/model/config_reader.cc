// Bounded reads of hyper-parameters.
#include "daemon/model/config_reader.h"

#include <algorithm>
#include <cstdio>

namespace ellm::model {
namespace {

std::string number_text(double x) {
  char text[32];
  std::snprintf(text, sizeof text, "%g", x);
  return text;
}

}  // namespace

format::FormatError ConfigReader::error(std::string_view key, const std::string& text) const {
  return file_.error("key " + format::quoted(full(key)) + ": " + text);
}

std::optional<uint32_t> ConfigReader::find_size(std::string_view key, uint32_t least, uint32_t most) const {
  const std::optional<uint64_t> value = file_.find_uint(full(key));
  if (!value) return std::nullopt;
  if (*value < least || *value > most)
    throw error(key, std::to_string(*value) + ", expected " + std::to_string(least) + " to " + std::to_string(most));
  return static_cast<uint32_t>(*value);
}

uint32_t ConfigReader::get_size(std::string_view key, uint32_t least, uint32_t most) const {
  if (const auto value = find_size(key, least, most)) return *value;
  throw error(key, "is missing");
}

std::optional<double> ConfigReader::find_number(std::string_view key, double least, double most) const {
  const std::optional<double> value = file_.find_float(full(key));
  if (!value) return std::nullopt;
  if (*value >= least && *value <= most) return value;  // never true for NaN
  throw error(key, number_text(*value) + ", expected " + number_text(least) + " to " + number_text(most));
}

double ConfigReader::get_number(std::string_view key, double least, double most) const {
  if (const auto value = find_number(key, least, most)) return *value;
  throw error(key, "is missing");
}

std::optional<uint32_t> read_window(const ConfigReader& reader) {
  return reader.find_size("attention.sliding_window", 0, UINT32_MAX);
}

std::optional<float> read_soft_cap(const ConfigReader& reader, std::string_view key) {
  const std::optional<double> cap = reader.find_number(key, 0, 1e6);
  if (cap && *cap != 0 && *cap < 1e-3) throw reader.error(key, number_text(*cap) + ", expected 0 or 0.001 to 1e+06");
  return cap ? std::optional(static_cast<float>(*cap)) : std::nullopt;
}

void read_experts(const ConfigReader& reader, ModelConfig& config) {
  config.experts = reader.get_size("expert_count", 1, 1u << 16);
  config.experts_used = reader.get_size("expert_used_count", 1, config.experts);
  const auto size = reader.find_size("expert_feed_forward_length", 1, kWidest);
  config.expert_feed_forward = size.value_or(std::max(1u, config.feed_forward / config.experts_used));
}

}  // namespace ellm::model
