// Layout (GGUF specification, versions 2 and 3): "GGUF", version u32, tensor count u64, key count u64; per key: name,
// type u32, value; per tensor: name, dimensions u32, each u64, type u32, offset u64; padding to the alignment; tensor
// data. A string is a length u64 and bytes; an array is an element type u32, a count u64 and the elements.
// A length or count is compared with the bytes that are left before anything is read or reserved for it.
#include "daemon/format/gguf_parser.h"

#include <algorithm>
#include <bit>
#include <cstring>

namespace ellm::format {
namespace {

static_assert(std::endian::native == std::endian::little, "GGUF is read as it lies in memory");

constexpr uint64_t kSmallestKey = 8 + 1 + 4 + 1;         // name of one byte, type, a value of one byte
constexpr uint64_t kSmallestTensor = 8 + 1 + 4 + 4 + 8;  // name of one byte, no dimensions, type, offset
constexpr uint64_t kLongestKey = 65535;                  // of the specification
constexpr uint64_t kLongestTensorName = 63;              // ggml's GGML_MAX_NAME less its NUL
constexpr uint32_t kMostDimensions = 4;
constexpr uint64_t kDefaultAlignment = 32;

std::string number(uint64_t n) { return std::to_string(n); }

/// Bytes of one value, 0 for those of variable length.
uint32_t value_bytes(ValueType type) {
  switch (type) {
    case ValueType::u8:
    case ValueType::i8:
    case ValueType::boolean: return 1;
    case ValueType::u16:
    case ValueType::i16: return 2;
    case ValueType::u32:
    case ValueType::i32:
    case ValueType::f32: return 4;
    case ValueType::u64:
    case ValueType::i64:
    case ValueType::f64: return 8;
    case ValueType::string:
    case ValueType::array: break;
  }
  return 0;
}

class Parser {
 public:
  explicit Parser(GgufPart& part) : part_(part), file_(part.file), size_(part.file.size()) {}

  void parse() {
    read_header();
    for (uint64_t i = 0; i < keys_; i++) read_key(i);
    for (uint64_t i = 0; i < tensors_; i++) read_tensor(i);
    place_tensors();
    file_.trim_head(at_);
  }

 private:
  [[noreturn]] void fail(const std::string& text) const {
    throw FormatError(file_.path() + ": " + (subject_.empty() ? "" : subject_ + ": ") + text);
  }

  uint64_t left() const { return size_ - at_; }

  const std::byte* take(uint64_t bytes, const char* what) {
    if (bytes > left())
      fail(std::string("the file ends too early: ") + what + " needs " + number(bytes) + " bytes at byte " +
           number(at_) + ", the file has " + number(size_));
    const std::byte* p = file_.head(at_ + bytes) + at_;
    at_ += bytes;
    return p;
  }

  template <typename T>
  T read(const char* what) {
    T value;
    std::memcpy(&value, take(sizeof value, what), sizeof value);
    return value;
  }

  std::string_view read_string(const char* what) {
    const uint64_t length = read<uint64_t>(what);
    if (length > left())
      fail(std::string(what) + " has a length of " + number(length) + " bytes, the file has " + number(left()) +
           " left");
    return {reinterpret_cast<const char*>(take(length, what)), length};
  }

  void read_header();
  void read_key(uint64_t index);
  void read_scalar(Value& value);
  void read_array(Value& value);
  void check_booleans(const Value& value) const;
  void read_tensor(uint64_t index);
  uint64_t tensor_bytes(const Tensor& tensor) const;
  uint64_t alignment() const;
  void place_tensors();

  GgufPart& part_;
  ModelFile& file_;
  uint64_t size_, at_ = 0;
  uint64_t keys_ = 0, tensors_ = 0;
  std::vector<uint64_t> offsets_, bytes_;  // of the tensors' data
  std::string subject_;                    // what is being read, for messages: "key 'llama.block_count'"
};

void Parser::read_header() {
  const auto* magic = reinterpret_cast<const char*>(take(4, "the magic"));
  const std::string_view seen(magic, 4);
  if (seen != "GGUF") {
    const bool old = seen == "lmgg" || seen == "fmgg" || seen == "tjgg" || seen == "algg";
    fail("is not a GGUF file: it begins with " + quoted(seen) + ", expected 'GGUF'" +
         (old ? " (an older ggml format; convert the model again)" : ""));
  }
  const uint32_t version = read<uint32_t>("the version");
  if (version == 1) fail("has GGUF version 1, which is no longer in use; expected 2 or 3");
  if (const uint32_t swapped = __builtin_bswap32(version); version > 0xffff && swapped >= 1 && swapped <= 0xffff)
    fail("is a big-endian GGUF file (version " + number(swapped) + "); expected little-endian");
  if (version != 2 && version != 3) fail("has GGUF version " + number(version) + ", expected 2 or 3");
  part_.version = version;
  tensors_ = read<uint64_t>("the tensor count");
  keys_ = read<uint64_t>("the key count");
  if (tensors_ > left() / kSmallestTensor)
    fail("tensor count " + number(tensors_) + " is impossible in a file of " + number(size_) + " bytes");
  if (keys_ > left() / kSmallestKey)
    fail("key count " + number(keys_) + " is impossible in a file of " + number(size_) + " bytes");
}

void Parser::read_key(uint64_t index) {
  subject_ = "key " + number(index + 1) + " of " + number(keys_);
  const std::string_view name = read_string("the name");
  if (name.empty()) fail("the name is empty");
  if (name.size() > kLongestKey) fail("the name has " + number(name.size()) + " bytes, at most 65535 are allowed");
  subject_ = "key " + quoted(name);
  Value value;
  const uint32_t type = read<uint32_t>("the type");
  if (type > static_cast<uint32_t>(ValueType::f64)) fail("unknown value type " + number(type) + ", expected 0 to 12");
  value.type = static_cast<ValueType>(type);
  if (value.type == ValueType::array) read_array(value);
  else read_scalar(value);
  part_.values.emplace_back(name, std::move(value));
}

void Parser::read_scalar(Value& value) {
  if (value.type == ValueType::string) {
    value.strings.push_back(read_string("the string"));
    return;
  }
  const uint32_t bytes = value_bytes(value.type);
  value.bytes = {take(bytes, "the value"), bytes};
  if (value.type == ValueType::boolean) check_booleans(value);
}

void Parser::read_array(Value& value) {
  const uint32_t type = read<uint32_t>("the element type");
  if (type > static_cast<uint32_t>(ValueType::f64)) fail("unknown element type " + number(type) + ", expected 0 to 12");
  value.element_type = static_cast<ValueType>(type);
  if (value.element_type == ValueType::array) fail("arrays of arrays are not supported");
  value.count = read<uint64_t>("the array's length");
  const bool strings = value.element_type == ValueType::string;
  const uint64_t each = strings ? 8 : value_bytes(value.element_type);  // the least that an element takes
  if (value.count > left() / each)
    fail("an array of " + number(value.count) + " elements (" + value_type_name(value.element_type) +
         ") does not fit in the " + number(left()) + " bytes that the file has left");
  if (strings) {
    value.strings.reserve(value.count);
    for (uint64_t i = 0; i < value.count; i++) value.strings.push_back(read_string("a string of the array"));
    return;
  }
  value.bytes = {take(value.count * each, "the array"), value.count * each};
  if (value.element_type == ValueType::boolean) check_booleans(value);
}

void Parser::check_booleans(const Value& value) const {
  for (const std::byte b : value.bytes)
    if (b > std::byte{1}) fail("a boolean is stored as " + number(static_cast<unsigned>(b)) + ", expected 0 or 1");
}

void Parser::read_tensor(uint64_t index) {
  subject_ = "tensor " + number(index + 1) + " of " + number(tensors_);
  const std::string_view name = read_string("the name");
  if (name.empty()) fail("the name is empty");
  if (name.size() > kLongestTensorName)
    fail("the name has " + number(name.size()) + " bytes, at most " + number(kLongestTensorName) + " are allowed");
  subject_ = "tensor " + quoted(name);
  Tensor tensor;
  tensor.name = name;
  const uint32_t dims = read<uint32_t>("the number of dimensions");
  if (dims > kMostDimensions) fail(number(dims) + " dimensions, at most 4 are allowed");
  for (uint32_t d = 0; d < dims; d++) tensor.dims.push_back(read<uint64_t>("a dimension"));
  if (dims == 0) tensor.dims.push_back(1);  // a scalar
  const uint32_t type = read<uint32_t>("the type");
  tensor.type = format::find_tensor_type(type);
  if (!tensor.type)
    fail("unknown tensor type " + number(type) + ", the newest that is known is " + number(tensor_types().back().id));
  if (tensor.type->block_weights == 0)
    fail(std::string("tensor type ") + tensor.type->name + " was removed from the format; quantise the model again");
  bytes_.push_back(tensor_bytes(tensor));
  offsets_.push_back(read<uint64_t>("the offset"));
  part_.tensors.push_back(std::move(tensor));
}

uint64_t Parser::tensor_bytes(const Tensor& tensor) const {
  const TensorType& type = *tensor.type;
  uint64_t elements = 1;
  for (const uint64_t dim : tensor.dims) {
    if (dim == 0) fail("a dimension is 0");
    if (__builtin_mul_overflow(elements, dim, &elements) || elements > INT64_MAX)
      fail("the product of the dimensions does not fit in 63 bits");
  }
  if (tensor.dims[0] % type.block_weights != 0)
    fail("rows of " + number(tensor.dims[0]) + " are not a multiple of the block of " + type.name + ", " +
         number(type.block_weights));
  uint64_t bytes = 0;
  if (__builtin_mul_overflow(elements / type.block_weights, uint64_t{type.block_bytes}, &bytes) || bytes > size_)
    fail("its " + number(elements) + " elements of type " + type.name + " are more than the file's " + number(size_) +
         " bytes");
  return bytes;
}

uint64_t Parser::alignment() const {
  const Value* value = part_.find("general.alignment");
  if (!value) return kDefaultAlignment;
  const std::optional<uint64_t> alignment = unsigned_value(*value);
  if (!alignment)
    fail(std::string("key 'general.alignment': expected an unsigned integer, found ") + value_type_name(value->type));
  // The specification wants a multiple of 8; ggml a power of two.
  if (*alignment < 8 || !std::has_single_bit(*alignment))
    fail("key 'general.alignment': " + number(*alignment) + ", expected a power of two of at least 8");
  return *alignment;
}

/// Tensor data must fill the data section without gaps or overlaps, padded to the alignment, in any order: a wrong type
/// or dimension then shows itself at the next tensor.
void Parser::place_tensors() {
  subject_.clear();
  const uint64_t align = alignment();
  if (part_.tensors.empty()) return;
  const uint64_t start = (at_ + (align - 1)) / align * align;  // at_ < 2^63, align <= 2^63: no overflow
  if (start > size_) fail("the tensor data should begin at byte " + number(start) + ", the file has " + number(size_));
  std::vector<size_t> order(part_.tensors.size());
  for (size_t i = 0; i < order.size(); i++) order[i] = i;
  std::sort(order.begin(), order.end(), [&](size_t a, size_t b) { return offsets_[a] < offsets_[b]; });
  const uint64_t room = size_ - start;
  uint64_t expected = 0;
  for (const size_t i : order) {
    Tensor& tensor = part_.tensors[i];
    subject_ = "tensor " + quoted(tensor.name);
    const uint64_t offset = offsets_[i];
    if (offset % align != 0) fail("offset " + number(offset) + " is not a multiple of the alignment " + number(align));
    if (offset > room || bytes_[i] > room - offset)
      fail("its " + number(bytes_[i]) + " bytes (" + tensor.type->name + ") at offset " + number(offset) +
           " of the tensor data end behind the file: there are " + number(room));
    if (offset != expected)
      fail("begins at offset " + number(offset) + " of the tensor data, expected " + number(expected) +
           ", where the tensor before it ends");
    expected = (offset + bytes_[i] + (align - 1)) / align * align;
  }
  const std::byte* data = file_.map() + start;
  for (size_t i = 0; i < part_.tensors.size(); i++) {
    part_.tensors[i].data = {data + offsets_[i], bytes_[i]};
    part_.tensors[i].offset = start + offsets_[i];
  }
}

}  // namespace

const Value* GgufPart::find(std::string_view key) const {
  for (const auto& [name, value] : values)
    if (name == key) return &value;
  return nullptr;
}

GgufPart parse_gguf(ModelFile file) {
  GgufPart part{std::move(file), 0, {}, {}};
  Parser(part).parse();
  return part;
}

}  // namespace ellm::format
