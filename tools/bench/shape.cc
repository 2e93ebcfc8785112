// Published configurations (config.json of each model).
#include "tools/bench/shape.h"

#include <boost/json.hpp>
#include <fstream>
#include <iterator>
#include <stdexcept>

#include "tools/bench/mixture.h"

namespace ellm::bench {
namespace {

// name, architecture, layers, embedding, feed-forward, heads, KV heads, head size, vocabulary, context, RoPE base,
// tied, Llama 3's factor, experts, experts used, their feed-forward size
const Shape kShapes[] = {
    {"smollm2-135m", "llama", 30, 576, 1536, 9, 3, 64, 49152, 8192, 1e5, true, 0, 0, 0, 0},
    {"llama-3.2-1b", "llama", 16, 2048, 8192, 32, 8, 64, 128256, 131072, 5e5, true, 32, 0, 0, 0},
    {"llama-3.2-3b", "llama", 28, 3072, 8192, 24, 8, 128, 128256, 131072, 5e5, true, 32, 0, 0, 0},
    {"llama-3.1-8b", "llama", 32, 4096, 14336, 32, 8, 128, 128256, 131072, 5e5, false, 8, 0, 0, 0},
    {"llama-3.1-70b", "llama", 80, 8192, 28672, 64, 8, 128, 128256, 131072, 5e5, false, 8, 0, 0, 0},
    {"qwen2.5-0.5b", "qwen2", 24, 896, 4864, 14, 2, 64, 151936, 32768, 1e6, true, 0, 0, 0, 0},
    {"qwen2.5-1.5b", "qwen2", 28, 1536, 8960, 12, 2, 128, 151936, 32768, 1e6, true, 0, 0, 0, 0},
    {"qwen2.5-7b", "qwen2", 28, 3584, 18944, 28, 4, 128, 152064, 32768, 1e6, false, 0, 0, 0, 0},
    {"qwen2.5-32b", "qwen2", 64, 5120, 27648, 40, 8, 128, 152064, 32768, 1e6, false, 0, 0, 0, 0},
    {"qwen3-8b", "qwen3", 36, 4096, 12288, 32, 8, 128, 151936, 40960, 1e6, false, 0, 0, 0, 0},
    {"qwen3-30b-a3b", "qwen3moe", 48, 2048, 6144, 32, 4, 128, 151936, 40960, 1e6, false, 0, 128, 8, 768},
};

[[noreturn]] void refuse(const std::string& text) { throw std::runtime_error("--shape: " + text); }

std::string names() {
  std::string all;
  for (const Shape& s : kShapes) all += (all.empty() ? "" : ", ") + s.name;
  return all;
}

const Shape& find_shape(const std::string& name) {
  for (const Shape& s : kShapes)
    if (s.name == name) return s;
  refuse("no shape is called '" + name + "'; there are " + names());
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
  else return false;
  return true;
}

void check(const Shape& s) {
  if (s.architecture != "llama" && s.architecture != "qwen2" && s.architecture != "qwen3" &&
      s.architecture != "qwen3moe")
    refuse("architecture '" + s.architecture + "', expected llama, qwen2, qwen3 or qwen3moe");
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

std::span<const Shape> named_shapes() { return kShapes; }

ShapeRequest parse_shape(const std::string& text) {
  ShapeRequest request;
  if (text.starts_with('@') || text.starts_with('{')) {
    request = parse_object(text[0] == '@' ? read_file(text.substr(1)) : text);
  } else {
    const size_t colon = text.find(':');
    if (colon == text.npos) refuse("'" + text + "' lacks its weights, as in llama-3.2-1b:q4_k_m");
    request = {find_shape(text.substr(0, colon)), text.substr(colon + 1)};
  }
  if (!find_mixture(request.mix))
    refuse("'" + request.mix + "' is no mix of weight types; there are " + mixture_names());
  check(request.shape);
  return request;
}

}  // namespace ellm::bench
