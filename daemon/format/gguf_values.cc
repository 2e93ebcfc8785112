// Typed reads of metadata values. A value of another type than the reader wants is an error that names both.
#include <cstdio>
#include <cstring>

#include "daemon/format/gguf_parser.h"

namespace ellm::format {
namespace {

template <typename T>
T element(const Value& value, uint64_t i = 0) {
  T x;
  std::memcpy(&x, value.bytes.data() + i * sizeof(T), sizeof(T));
  return x;
}

std::string type_of(const Value& value) {
  if (value.type != ValueType::array) return value_type_name(value.type);
  return std::string("an array of ") + std::to_string(value.count) + " " + value_type_name(value.element_type);
}

FormatError wrong_type(const Gguf& file, std::string_view key, const char* expected, const Value& found) {
  return file.error("key " + quoted(key) + ": expected " + expected + ", found " + type_of(found));
}

FormatError missing(const Gguf& file, std::string_view key) { return file.error("key " + quoted(key) + " is missing"); }

}  // namespace

const char* value_type_name(ValueType type) {
  switch (type) {
    case ValueType::u8: return "u8";
    case ValueType::i8: return "i8";
    case ValueType::u16: return "u16";
    case ValueType::i16: return "i16";
    case ValueType::u32: return "u32";
    case ValueType::i32: return "i32";
    case ValueType::f32: return "f32";
    case ValueType::boolean: return "bool";
    case ValueType::string: return "string";
    case ValueType::array: return "array";
    case ValueType::u64: return "u64";
    case ValueType::i64: return "i64";
    case ValueType::f64: return "f64";
  }
  return "unknown";
}

std::string quoted(std::string_view text) {
  constexpr size_t kLongest = 80;
  std::string out = "'";
  for (const char c : text.substr(0, kLongest)) {
    if (c >= ' ' && c <= '~') {
      out += c;
      continue;
    }
    char escape[8];
    std::snprintf(escape, sizeof escape, "\\x%02x", static_cast<unsigned char>(c));
    out += escape;
  }
  return out + (text.size() > kLongest ? "…'" : "'");
}

uint64_t Tensor::elements() const {
  uint64_t n = 1;
  for (const uint64_t dim : dims) n *= dim;  // checked at open
  return n;
}

std::optional<uint64_t> unsigned_value(const Value& value) {
  const auto from_signed = [](int64_t x) { return x < 0 ? std::nullopt : std::optional<uint64_t>(x); };
  switch (value.type) {
    case ValueType::u8: return element<uint8_t>(value);
    case ValueType::u16: return element<uint16_t>(value);
    case ValueType::u32: return element<uint32_t>(value);
    case ValueType::u64: return element<uint64_t>(value);
    case ValueType::i8: return from_signed(element<int8_t>(value));
    case ValueType::i16: return from_signed(element<int16_t>(value));
    case ValueType::i32: return from_signed(element<int32_t>(value));
    case ValueType::i64: return from_signed(element<int64_t>(value));
    default: return std::nullopt;
  }
}

std::optional<uint64_t> Gguf::find_uint(std::string_view key) const {
  const Value* value = find(key);
  if (!value) return std::nullopt;
  const std::optional<uint64_t> number = unsigned_value(*value);
  if (!number) throw wrong_type(*this, key, "an integer of 0 or more", *value);
  return number;
}

std::optional<double> Gguf::find_float(std::string_view key) const {
  const Value* value = find(key);
  if (!value) return std::nullopt;
  if (value->type == ValueType::f32) return element<float>(*value);
  if (value->type == ValueType::f64) return element<double>(*value);
  throw wrong_type(*this, key, "f32 or f64", *value);
}

std::optional<bool> Gguf::find_bool(std::string_view key) const {
  const Value* value = find(key);
  if (!value) return std::nullopt;
  if (value->type != ValueType::boolean) throw wrong_type(*this, key, "bool", *value);
  return value->bytes[0] != std::byte{0};
}

std::optional<std::string_view> Gguf::find_string(std::string_view key) const {
  const Value* value = find(key);
  if (!value) return std::nullopt;
  if (value->type != ValueType::string) throw wrong_type(*this, key, "string", *value);
  return value->strings[0];
}

const std::vector<std::string_view>* Gguf::find_strings(std::string_view key) const {
  const Value* value = find(key);
  if (!value) return nullptr;
  if (value->type != ValueType::array || value->element_type != ValueType::string)
    throw wrong_type(*this, key, "an array of strings", *value);
  return &value->strings;
}

std::optional<std::vector<float>> Gguf::find_floats(std::string_view key) const {
  const Value* value = find(key);
  if (!value) return std::nullopt;
  if (value->type != ValueType::array || value->element_type != ValueType::f32)
    throw wrong_type(*this, key, "an array of f32", *value);
  std::vector<float> out(value->count);
  if (!out.empty()) std::memcpy(out.data(), value->bytes.data(), value->bytes.size());
  return out;
}

std::optional<std::vector<int64_t>> Gguf::find_ints(std::string_view key) const {
  const Value* value = find(key);
  if (!value) return std::nullopt;
  const ValueType type = value->type == ValueType::array ? value->element_type : ValueType::string;
  if (type != ValueType::i32 && type != ValueType::u32 && type != ValueType::i64 && type != ValueType::u64)
    throw wrong_type(*this, key, "an array of integers of 32 or 64 bits", *value);
  std::vector<int64_t> out(value->count);
  for (uint64_t i = 0; i < value->count; i++) {
    switch (type) {
      case ValueType::i32: out[i] = element<int32_t>(*value, i); break;
      case ValueType::u32: out[i] = element<uint32_t>(*value, i); break;
      case ValueType::i64: out[i] = element<int64_t>(*value, i); break;
      default: {
        const uint64_t x = element<uint64_t>(*value, i);
        if (x > INT64_MAX)
          throw error("key " + quoted(key) + ": element " + std::to_string(i) + " is " + std::to_string(x) +
                      ", expected less than 2^63");
        out[i] = static_cast<int64_t>(x);
      }
    }
  }
  return out;
}

uint64_t Gguf::get_uint(std::string_view key) const {
  if (const auto value = find_uint(key)) return *value;
  throw missing(*this, key);
}

double Gguf::get_float(std::string_view key) const {
  if (const auto value = find_float(key)) return *value;
  throw missing(*this, key);
}

std::string_view Gguf::get_string(std::string_view key) const {
  if (const auto value = find_string(key)) return *value;
  throw missing(*this, key);
}

}  // namespace ellm::format
