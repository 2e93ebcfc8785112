// Summaries of a model file.
#include "daemon/format/inspect.h"

#include <algorithm>
#include <cstdio>
#include <cstring>

namespace ellm::format {
namespace {

template <typename T>
T element(const Value& value, uint64_t i) {
  T x;
  std::memcpy(&x, value.bytes.data() + i * sizeof(T), sizeof(T));
  return x;
}

std::string float_text(double x) {
  char text[40];
  std::snprintf(text, sizeof text, "%.9g", x);
  return text;
}

/// Cuts between characters, so that the result stays UTF-8 where the text was.
std::string string_text(std::string_view text, size_t longest) {
  if (text.size() <= longest) return std::string(text);
  size_t end = longest;
  while (end > 0 && (static_cast<unsigned char>(text[end]) & 0xc0) == 0x80) end--;
  return std::string(text.substr(0, end)) + "…";
}

std::string element_text(const Value& value, ValueType type, uint64_t i, size_t longest) {
  switch (type) {
    case ValueType::u8: return std::to_string(element<uint8_t>(value, i));
    case ValueType::i8: return std::to_string(element<int8_t>(value, i));
    case ValueType::u16: return std::to_string(element<uint16_t>(value, i));
    case ValueType::i16: return std::to_string(element<int16_t>(value, i));
    case ValueType::u32: return std::to_string(element<uint32_t>(value, i));
    case ValueType::i32: return std::to_string(element<int32_t>(value, i));
    case ValueType::u64: return std::to_string(element<uint64_t>(value, i));
    case ValueType::i64: return std::to_string(element<int64_t>(value, i));
    case ValueType::f32: return float_text(element<float>(value, i));
    case ValueType::f64: return float_text(element<double>(value, i));
    case ValueType::boolean: return element<uint8_t>(value, i) ? "true" : "false";
    case ValueType::string: return "\"" + string_text(value.strings[i], longest) + "\"";
    case ValueType::array: break;
  }
  return {};
}

/// Tables that a converter computed, which are no weights.
bool is_table(std::string_view name) { return name.starts_with("rope_f"); }

}  // namespace

std::vector<TypeShare> weight_types(const Gguf& file) {
  std::vector<TypeShare> shares(tensor_types().size());
  for (const Tensor& tensor : file.tensors()) {
    TypeShare& share = shares[tensor.type->id];
    share.type = tensor.type;
    share.tensors++;
    share.parameters += tensor.elements();
    share.bytes += tensor.data.size();
  }
  std::erase_if(shares, [](const TypeShare& share) { return share.tensors == 0; });
  std::sort(shares.begin(), shares.end(), [](const TypeShare& a, const TypeShare& b) {
    return a.bytes != b.bytes ? a.bytes > b.bytes : a.type->id < b.type->id;
  });
  return shares;
}

std::string describe_weight_types(const Gguf& file) {
  const std::vector<TypeShare> shares = weight_types(file);
  uint64_t total = 0;
  for (const TypeShare& share : shares) total += share.bytes;
  std::string text;
  for (const TypeShare& share : shares) {
    const auto percent =
        static_cast<unsigned>(100.0 * static_cast<double>(share.bytes) / static_cast<double>(total) + 0.5);
    if (percent == 0) continue;
    text += (text.empty() ? "" : ", ") + std::string(share.type->name) + " " + std::to_string(percent) + " %";
  }
  return text;
}

uint64_t parameter_count(const Gguf& file) {
  uint64_t count = 0;
  for (const Tensor& tensor : file.tensors())
    if (!is_table(tensor.name)) count += tensor.elements();
  return count;
}

std::string size_label(uint64_t parameters) {
  struct Unit {
    double size;
    char letter;
  };
  for (const Unit unit : {Unit{1e12, 'T'}, Unit{1e9, 'B'}, Unit{1e6, 'M'}, Unit{1e3, 'K'}}) {
    // 0.9995 of a unit is already printed as one of it: 999.7M is 1.0B.
    const double n = static_cast<double>(parameters) / unit.size;
    if (n < 0.9995) continue;
    char text[32];
    std::snprintf(text, sizeof text, n < 9.95 ? "%.1f%c" : "%.0f%c", n, unit.letter);
    return text;
  }
  return std::to_string(parameters);
}

std::string describe(const Value& value, size_t longest) {
  if (value.type != ValueType::array) return element_text(value, value.type, 0, longest);
  std::string out = "[";
  for (uint64_t i = 0; i < value.count; i++) {
    std::string next = (i > 0 ? ", " : "") + element_text(value, value.element_type, i, longest);
    if (out.size() + next.size() > longest) {
      out += i > 0 ? ", …" : "…";
      break;
    }
    out += next;
  }
  return out + "] (" + std::to_string(value.count) + " " + value_type_name(value.element_type) + ")";
}

}  // namespace ellm::format
