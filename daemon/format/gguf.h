// A GGUF file (v2 and v3, little endian, single or split), memory-mapped and checked. Everything a file says is
// verified against its length before anything is allocated; errors name file, key or tensor, value and expectation.
// Source: the GGUF specification. Immutable after open; any thread.
#pragma once
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <stdexcept>
#include <string>
#include <string_view>
#include <vector>

namespace ellm::format {

/// What is wrong with a model file: "FILE: key 'llama.block_count': …".
class FormatError : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

/// ggml's tensor types, all that were ever published.
struct TensorType {
  uint32_t id;
  const char* name;        // "Q4_K"
  uint32_t block_weights;  // 0: removed from the format
  uint32_t block_bytes;
};
const TensorType* find_tensor_type(uint32_t id);
std::span<const TensorType> tensor_types();

struct Tensor {
  std::string name;
  const TensorType* type;
  std::vector<uint64_t> dims;       // fastest first: dims[0] is the row length
  std::span<const std::byte> data;  // in the mapped file, aligned to 8 or more; see Gguf::read
  uint32_t part = 0;                // of a split model
  uint64_t offset = 0;              // of the data in its part
  uint64_t elements() const;
  uint64_t rows() const { return elements() / dims[0]; }
};

enum class ValueType : uint32_t { u8, i8, u16, i16, u32, i32, f32, boolean, string, array, u64, i64, f64 };
const char* value_type_name(ValueType type);  // "u32", "bool"

/// Text of a file as it may stand in a message: 'in quotes', unprintable bytes escaped, cut after 80.
std::string quoted(std::string_view text);

/// A metadata value; arrays keep their elements packed as they lie in the file. The bytes are a private copy: they stay
/// valid and unchanged whatever happens to the file.
struct Value {
  ValueType type;
  ValueType element_type{};               // of an array
  uint64_t count = 1;                     // elements
  std::span<const std::byte> bytes;       // numbers and booleans, unaligned, little endian
  std::vector<std::string_view> strings;  // a string, or an array of strings
};

/// A file that is open already: read by its descriptor, which stays the caller's; called by its path in messages.
struct OpenFile {
  std::string path;
  int fd = -1;
};

class Gguf {
 public:
  /// Opens FILE, and the other parts where it is the first of a split model. Throws FormatError.
  static std::shared_ptr<const Gguf> open(const std::string& path);
  /// The same of open files: one, or all parts of a split model in order. Their names need not say so.
  static std::shared_ptr<const Gguf> open(std::span<const OpenFile> files);

  const std::string& path() const;
  uint32_t version() const;
  uint64_t file_bytes() const;                                       // all parts
  std::vector<std::string> part_paths() const;                       // the file, or all files of a split model in order
  const std::vector<std::pair<std::string, Value>>& values() const;  // in file order, the first part's
  const std::vector<Tensor>& tensors() const;

  const Value* find(std::string_view key) const;
  const Tensor* find_tensor(std::string_view name) const;

  // Typed reads. find_*: absent when the key is; a wrong type or range throws. get_*: absence throws too.
  // Any integer type serves where an integer is wanted, f32 and f64 where a float is.
  std::optional<uint64_t> find_uint(std::string_view key) const;
  std::optional<double> find_float(std::string_view key) const;
  std::optional<bool> find_bool(std::string_view key) const;
  std::optional<std::string_view> find_string(std::string_view key) const;
  const std::vector<std::string_view>* find_strings(std::string_view key) const;
  std::optional<std::vector<float>> find_floats(std::string_view key) const;  // f32 arrays only
  std::optional<std::vector<int64_t>> find_ints(std::string_view key) const;  // i32 or u32 (or wider) arrays
  uint64_t get_uint(std::string_view key) const;
  double get_float(std::string_view key) const;
  std::string_view get_string(std::string_view key) const;

  /// Copies bytes [first, first + to.size()) of a tensor's data. Throws where the file cannot be read or has become
  /// shorter. Tensor::data is a mapping: a file that is cut short meanwhile raises SIGBUS there, so whoever must
  /// survive that reads instead.
  void read(const Tensor& tensor, uint64_t first, std::span<std::byte> to) const;

  /// Throws when a part's length or time of change is no longer what it was at open(): a loader calls this when it has
  /// read everything.
  void check_unchanged() const;

  /// An error that names this file: "FILE: text".
  [[nodiscard]] FormatError error(const std::string& text) const;

 private:
  struct Impl;
  static std::shared_ptr<const Gguf> make(std::shared_ptr<Impl> impl);
  explicit Gguf(std::shared_ptr<const Impl> impl);
  std::shared_ptr<const Impl> impl_;
};

}  // namespace ellm::format
