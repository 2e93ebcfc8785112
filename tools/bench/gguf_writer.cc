#include "tools/bench/gguf_writer.h"

#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <system_error>

namespace ellm::bench {
namespace {

constexpr uint64_t kAlignment = 32;
enum : uint32_t { kU32 = 4, kI32 = 5, kF32 = 6, kBool = 7, kString = 8, kArray = 9 };  // value types

uint64_t align(uint64_t n) { return (n + kAlignment - 1) / kAlignment * kAlignment; }

template <typename T>
void put(std::string& out, T value) {
  out.append(reinterpret_cast<const char*>(&value), sizeof value);
}
void put_text(std::string& out, std::string_view text) {
  put<uint64_t>(out, text.size());
  out.append(text);
}

struct Closer {
  void operator()(FILE* f) const { std::fclose(f); }
};

void write_all(FILE* file, const std::string& path, const void* data, size_t bytes) {
  if (std::fwrite(data, 1, bytes, file) != bytes)
    throw std::system_error(errno, std::generic_category(), "cannot write " + path);
}

}  // namespace

uint64_t TensorPlan::elements() const {
  uint64_t n = 1;
  for (const uint64_t d : dims) n *= d;
  return n;
}
uint64_t TensorPlan::bytes() const {
  const kernels::BlockShape block = kernels::block_shape(type);
  return elements() / block.weights * block.bytes;
}

void GgufWriter::add(std::string_view key, uint32_t value) {
  put_text(values_, key), put(values_, uint32_t{kU32}), put(values_, value), ++keys_;
}
void GgufWriter::add(std::string_view key, float value) {
  put_text(values_, key), put(values_, uint32_t{kF32}), put(values_, value), ++keys_;
}
void GgufWriter::add(std::string_view key, bool value) {
  put_text(values_, key), put(values_, uint32_t{kBool}), put(values_, uint8_t{value}), ++keys_;
}
void GgufWriter::add(std::string_view key, std::string_view value) {
  put_text(values_, key), put(values_, uint32_t{kString}), put_text(values_, value), ++keys_;
}
void GgufWriter::add(std::string_view key, std::span<const std::string> values) {
  put_text(values_, key), put(values_, uint32_t{kArray}), put(values_, uint32_t{kString}),
      put<uint64_t>(values_, values.size());
  for (const std::string& v : values) put_text(values_, v);
  ++keys_;
}
void GgufWriter::add(std::string_view key, std::span<const int32_t> values) {
  put_text(values_, key), put(values_, uint32_t{kArray}), put(values_, uint32_t{kI32}),
      put<uint64_t>(values_, values.size());
  for (const int32_t v : values) put(values_, v);
  ++keys_;
}

std::string GgufWriter::header(std::span<const TensorPlan> tensors) const {
  std::string head = "GGUF";
  put<uint32_t>(head, 3), put<uint64_t>(head, tensors.size()), put<uint64_t>(head, keys_);
  head += values_;
  uint64_t offset = 0;
  for (const TensorPlan& t : tensors) {
    put_text(head, t.name), put<uint32_t>(head, static_cast<uint32_t>(t.dims.size()));
    for (const uint64_t d : t.dims) put(head, d);
    put(head, static_cast<uint32_t>(t.type)), put(head, offset);
    offset += align(t.bytes());
  }
  head.resize(align(head.size()));
  return head;
}

uint64_t GgufWriter::file_bytes(std::span<const TensorPlan> tensors) const {
  uint64_t bytes = header(tensors).size();
  for (const TensorPlan& t : tensors) bytes += align(t.bytes());
  return bytes;
}

void GgufWriter::write(const std::string& path, std::span<const TensorPlan> tensors,
                       const std::function<void(const TensorPlan&, std::span<std::byte>)>& data) const {
  const std::string temporary = path + "." + std::to_string(::getpid());
  const std::unique_ptr<FILE, Closer> file(std::fopen(temporary.c_str(), "wbxe"));
  if (!file) throw std::system_error(errno, std::generic_category(), "cannot create " + temporary);
  try {
    const std::string head = header(tensors);
    write_all(file.get(), temporary, head.data(), head.size());
    std::vector<std::byte> piece;
    for (const TensorPlan& t : tensors) {
      const uint64_t block = kernels::block_shape(t.type).bytes, most = (1u << 20) / block * block;
      for (uint64_t done = 0; done < t.bytes(); done += piece.size()) {
        piece.resize(std::min(most, t.bytes() - done));
        data(t, piece);
        write_all(file.get(), temporary, piece.data(), piece.size());
      }
      const char zeros[kAlignment] = {};
      write_all(file.get(), temporary, zeros, align(t.bytes()) - t.bytes());
    }
    if (std::fflush(file.get()) != 0 || std::rename(temporary.c_str(), path.c_str()) != 0)
      throw std::system_error(errno, std::generic_category(), "cannot write " + path);
  } catch (...) {
    ::unlink(temporary.c_str());
    throw;
  }
}

}  // namespace ellm::bench
