// Writes GGUF files for tests, byte by byte after the specification and without the reader's code.
#pragma once
#include <cstdint>
#include <cstring>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace ellm::tests {

class GgufBuilder {
 public:
  uint32_t version = 3;
  uint64_t alignment = 32;  // of the data; set "general.alignment" as well where it is not 32

  template <typename T>
  static std::string raw(T value) {
    std::string bytes(sizeof value, '\0');
    std::memcpy(bytes.data(), &value, sizeof value);
    return bytes;
  }
  static std::string text(std::string_view s) { return raw<uint64_t>(s.size()).append(s); }

  // Type ids of the specification.
  GgufBuilder& u8(const std::string& key, uint8_t x) { return value(key, 0, raw(x)); }
  GgufBuilder& i8(const std::string& key, int8_t x) { return value(key, 1, raw(x)); }
  GgufBuilder& u16(const std::string& key, uint16_t x) { return value(key, 2, raw(x)); }
  GgufBuilder& i16(const std::string& key, int16_t x) { return value(key, 3, raw(x)); }
  GgufBuilder& u32(const std::string& key, uint32_t x) { return value(key, 4, raw(x)); }
  GgufBuilder& i32(const std::string& key, int32_t x) { return value(key, 5, raw(x)); }
  GgufBuilder& f32(const std::string& key, float x) { return value(key, 6, raw(x)); }
  GgufBuilder& boolean(const std::string& key, bool x) { return value(key, 7, raw<uint8_t>(x)); }
  GgufBuilder& string(const std::string& key, std::string_view x) { return value(key, 8, text(x)); }
  GgufBuilder& u64(const std::string& key, uint64_t x) { return value(key, 10, raw(x)); }
  GgufBuilder& i64(const std::string& key, int64_t x) { return value(key, 11, raw(x)); }
  GgufBuilder& f64(const std::string& key, double x) { return value(key, 12, raw(x)); }

  GgufBuilder& strings(const std::string& key, const std::vector<std::string>& items) {
    std::string bytes = raw<uint32_t>(8) + raw<uint64_t>(items.size());
    for (const std::string& item : items) bytes += text(item);
    return value(key, 9, bytes);
  }
  template <typename T>
  GgufBuilder& array(const std::string& key, uint32_t element_type, const std::vector<T>& items) {
    std::string bytes = raw(element_type) + raw<uint64_t>(items.size());
    for (const T& item : items) bytes += raw(item);
    return value(key, 9, bytes);
  }

  /// Replaces the key's value, or adds the key at the end.
  GgufBuilder& value(const std::string& key, uint32_t type, std::string bytes) {
    for (auto& entry : keys_)
      if (entry.first == key) {
        entry.second = raw(type) + bytes;
        return *this;
      }
    keys_.emplace_back(key, raw(type) + bytes);
    return *this;
  }
  GgufBuilder& remove(const std::string& key) {
    std::erase_if(keys_, [&](const auto& entry) { return entry.first == key; });
    return *this;
  }

  GgufBuilder& tensor(const std::string& name, std::vector<uint64_t> dims, uint32_t type, std::string data) {
    for (Entry& entry : tensors_)
      if (entry.name == name) {
        entry = {name, std::move(dims), type, std::move(data)};
        return *this;
      }
    tensors_.push_back({name, std::move(dims), type, std::move(data)});
    return *this;
  }
  GgufBuilder& tensor_f32(const std::string& name, std::vector<uint64_t> dims, float fill = 0.5f) {
    uint64_t n = 1;
    for (const uint64_t dim : dims) n *= dim;
    std::string data;
    for (uint64_t i = 0; i < n; i++) data += raw(fill);
    return tensor(name, std::move(dims), 0, std::move(data));
  }
  GgufBuilder& remove_tensor(const std::string& name) {
    std::erase_if(tensors_, [&](const Entry& entry) { return entry.name == name; });
    return *this;
  }

  std::string bytes() const {
    std::string head = "GGUF" + raw(version) + raw<uint64_t>(tensors_.size()) + raw<uint64_t>(keys_.size());
    for (const auto& [key, bytes] : keys_) head += text(key) + bytes;
    std::string data;
    for (const Entry& entry : tensors_) {
      head += text(entry.name) + raw<uint32_t>(static_cast<uint32_t>(entry.dims.size()));
      for (const uint64_t dim : entry.dims) head += raw(dim);
      head += raw(entry.type) + raw<uint64_t>(data.size());
      data += entry.data;
      data.resize((data.size() + alignment - 1) / alignment * alignment);
    }
    head.resize((head.size() + alignment - 1) / alignment * alignment);
    return head + data;
  }

 private:
  struct Entry {
    std::string name;
    std::vector<uint64_t> dims;
    uint32_t type;
    std::string data;
  };
  std::vector<std::pair<std::string, std::string>> keys_;
  std::vector<Entry> tensors_;
};

}  // namespace ellm::tests
