// What --shape says: a name, or JSON.
#include "tools/bench/shape.h"

#include <algorithm>
#include <boost/json.hpp>
#include <fstream>
#include <iterator>
#include <stdexcept>

#include "tools/bench/mixture.h"

namespace ellm::bench {
namespace {

[[noreturn]] void refuse(const std::string& text) { throw std::runtime_error("--shape: " + text); }

const Shape& find_shape(const std::string& name) {
  for (const Shape& s : named_shapes())
    if (s.name == name) return s;
  refuse("no shape is called '" + name + "'; there are " + shape_names());
}

std::string read_file(const std::string& path) {
  std::ifstream in(path, std::ios::binary);
  if (!in) refuse("cannot read " + path);
  return {std::istreambuf_iterator<char>(in), {}};
}

/// One field of the JSON form; `set` says whether the key is known.
bool assign(Shape& s, std::string_view key, const boost::json::value& v) {
  const auto count = [&](uint32_t& to) { to = v.to_number<uint32_t>(); };
  if (key == "name") s.name = v.as_string();
  else if (key == "architecture") s.architecture = v.as_string();
  else if (key == "layers") count(s.layers);
  else if (key == "embedding") count(s.embedding);
  else if (key == "feed_forward") count(s.feed_forward);
  else if (key == "heads") count(s.heads);
  else if (key == "kv_heads") count(s.kv_heads);
  else if (key == "head_dim") count(s.head_dim);
  else if (key == "vocabulary") count(s.vocabulary);
  else if (key == "context") count(s.context);
  else if (key == "rope_base") s.rope_base = v.to_number<double>();
  else if (key == "tied") s.tied = v.as_bool();
  else if (key == "llama3_factor") s.llama3_factor = v.to_number<double>();
  else if (key == "experts") count(s.experts);
  else if (key == "experts_used") count(s.experts_used);
  else if (key == "expert_feed_forward") count(s.expert_feed_forward);
  else if (key == "window") count(s.window);
  else return false;
  return true;
}

void check(const Shape& s) {
  constexpr std::string_view kArchitectures[] = {"llama", "qwen2", "qwen3", "qwen3moe", "gemma2", "gemma3", "phi3"};
  if (std::ranges::find(kArchitectures, s.architecture) == std::end(kArchitectures))
    refuse("architecture '" + s.architecture + "', expected llama, qwen2, qwen3, qwen3moe, gemma2, gemma3 or phi3");
  const std::pair<const char*, uint32_t> needed[] = {
      {"layers", s.layers},  {"embedding", s.embedding}, {"feed_forward", s.feed_forward},
      {"heads", s.heads},    {"kv_heads", s.kv_heads},   {"head_dim", s.head_dim},
      {"context", s.context}};
  for (const auto& [name, value] : needed)
    if (value == 0 || value > 1u << 24) refuse(std::string("\"") + name + "\" is missing or out of range");
  if (s.embedding % 32 != 0 || s.feed_forward % 32 != 0 || s.head_dim % 8 != 0)
    refuse("embedding and feed_forward must be multiples of 32, head_dim of 8");
  if (s.heads % s.kv_heads != 0) refuse("kv_heads must divide heads");
  if (s.vocabulary < 1024 || s.vocabulary > 1u << 20) refuse("\"vocabulary\" must be within 1,024 and 1,048,576");
  if ((s.architecture == "qwen3moe") != (s.experts > 0))
    refuse("experts belong to architecture qwen3moe, and to no other");
  if (s.architecture.starts_with("gemma") && !s.tied) refuse("of gemma2 and gemma3 embedding and output are tied");
  if (s.window > 0 && !s.architecture.starts_with("gemma") && s.architecture != "phi3")
    refuse("a window belongs to architectures gemma2, gemma3 and phi3");
  if (s.experts > 0 && (s.experts_used == 0 || s.experts_used > s.experts || s.expert_feed_forward % 32 != 0 ||
                        s.expert_feed_forward == 0))
    refuse("experts need experts_used and expert_feed_forward (a multiple of 32)");
}

ShapeRequest parse_object(const std::string& text) {
  boost::system::error_code error;
  const boost::json::value value = boost::json::parse(text, error);
  if (error || !value.is_object()) refuse("not a JSON object: " + text.substr(0, 80));
  const boost::json::object& object = value.as_object();
  ShapeRequest request;
  request.shape.name = "custom";
  if (const auto* base = object.if_contains("base")) request.shape = find_shape(std::string(base->as_string()));
  for (const auto& [key, v] : object) {
    if (key == "base") continue;
    try {
      if (key == "type") request.mix = v.as_string();
      else if (!assign(request.shape, key, v)) refuse("unknown key '" + std::string(key) + "'");
    } catch (const boost::system::system_error&) {
      refuse("'" + std::string(key) + "' has an impossible value");
    }
  }
  return request;
}

}  // namespace

std::string shape_names() {
  std::string all;
  for (const Shape& s : named_shapes()) all += (all.empty() ? "" : ", ") + s.name;
  return all;
}

ShapeRequest parse_shape(const std::string& text) {
  ShapeRequest request;
  if (text.starts_with('@') || text.starts_with('{')) {
    request = parse_object(text[0] == '@' ? read_file(text.substr(1)) : text);
  } else {
    const size_t colon = text.find(':');
    if (colon == text.npos) refuse("'" + text + "' lacks its weights, as in llama-3.2-1b:q4_k_m");
    request = {find_shape(text.substr(0, colon)), text.substr(colon + 1)};
  }
  if (request.mix.empty()) refuse("\"type\" is missing; there are " + mixture_names());
  if (!find_mixture(request.mix))
    refuse("'" + request.mix + "' is no mix of weight types; there are " + mixture_names());
  check(request.shape);
  return request;
}

}  // namespace ellm::bench
