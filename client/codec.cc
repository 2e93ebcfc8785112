// One encoder and one decoder by type, driven by the fields() of the messages.
#include "client/codec.h"

#include <array>
#include <bit>
#include <cmath>
#include <limits>
#include <msgpack.hpp>
#include <stdexcept>
#include <type_traits>

#include "client/msgpack_reader.h"
#include "client/utf8.h"

namespace ellm::client {
namespace {

template <class T>
concept Record = requires(T& value) { value.fields(); };
template <class T>
inline constexpr bool is_vector = false;
template <class T>
inline constexpr bool is_vector<std::vector<T>> = true;
template <class T>
inline constexpr bool is_pair = false;
template <class A, class B>
inline constexpr bool is_pair<std::pair<A, B>> = true;

// ---- encoding --------------------------------------------------------------------------------------------

/// What msgpack's packer writes to: a string that must not outgrow a frame.
struct FrameBuffer {
  std::string bytes;
  void write(const char* data, size_t size) {
    if (size > kMaxFrameBytes + sizeof(uint32_t) - bytes.size())
      throw std::length_error("the message is larger than a frame may be (" + std::to_string(kMaxFrameBytes >> 20) +
                              " MiB)");
    bytes.append(data, size);
  }
};

/// As it is: the packer itself writes 2.0 as an integer, and -0.0 as 0.
template <class Bits, class T>
void pack_float(FrameBuffer& buffer, char format, T value) {
  auto bits = std::bit_cast<Bits>(value);
  char bytes[1 + sizeof(Bits)] = {format};
  for (size_t i = 0; i < sizeof(Bits); i++) bytes[1 + i] = static_cast<char>(bits >> (8 * (sizeof(Bits) - 1 - i)));
  buffer.write(bytes, sizeof bytes);
}

/// msgpack's packer over a FrameBuffer.
struct Packer : msgpack::packer<FrameBuffer> {
  explicit Packer(FrameBuffer& to) : msgpack::packer<FrameBuffer>(to), buffer(to) {}
  FrameBuffer& buffer;
};

uint32_t checked_count(size_t count) {
  if (count > kMaxFrameBytes) throw std::length_error("a list is longer than a frame may be");
  return static_cast<uint32_t>(count);
}

void pack_string(Packer& packer, const std::string& value) {
  uint32_t size = checked_count(value.size());
  if (is_utf8(value)) packer.pack_str(size), packer.pack_str_body(value.data(), size);
  else packer.pack_bin(size), packer.pack_bin_body(value.data(), size);
}

template <class T>
void pack(Packer& packer, const T& value) {
  if constexpr (std::is_same_v<T, std::string>) {
    pack_string(packer, value);
  } else if constexpr (is_vector<T>) {
    packer.pack_array(checked_count(value.size()));
    for (const auto& element : value) pack(packer, element);
  } else if constexpr (is_pair<T>) {
    packer.pack_array(2);
    pack(packer, value.first), pack(packer, value.second);
  } else if constexpr (Record<T>) {
    std::apply([&](const auto&... field) { packer.pack_array(sizeof...(field)), (pack(packer, field), ...); },
               value.fields());
  } else if constexpr (std::is_enum_v<T>) {
    packer.pack(static_cast<std::underlying_type_t<T>>(value));
  } else if constexpr (std::is_same_v<T, float>) {
    pack_float<uint32_t>(packer.buffer, '\xca', value);
  } else if constexpr (std::is_same_v<T, double>) {
    pack_float<uint64_t>(packer.buffer, '\xcb', value);
  } else {
    static_assert(std::is_unsigned_v<T>);
    packer.pack(value);
  }
}

template <class M>
void pack_message(Packer& packer, const M& message) {
  std::apply(
      [&](const auto&... field) {
        packer.pack_array(1 + sizeof...(field));
        packer.pack(M::kTag);
        (pack(packer, field), ...);
      },
      message.fields());
}

// ---- decoding --------------------------------------------------------------------------------------------

/// Field `index` of a list such as "id, model, prompt"; "new_" is C++'s name for new.
std::string_view field_name(std::string_view names, size_t index) {
  for (; index > 0; index--) names.remove_prefix(names.find(',') + 2);
  const std::string_view name = names.substr(0, names.find(','));
  return name.substr(0, name.find_last_not_of('_') + 1);
}

/// Where the decoder is: a chain on the stack that becomes text only in an error.
struct Path {
  const Path* parent;
  std::string_view names;  // of the record's fields; empty: an element of a list
  size_t index = 0;

  std::string text() const {
    std::string head = parent ? parent->text() : std::string();
    if (names.empty()) return head + "[" + std::to_string(index) + "]";
    return head + (parent ? "." : "") + std::string(field_name(names, index));
  }
};

template <class E>
inline constexpr uint32_t kFirstEnumerator = 1;
template <>
inline constexpr uint32_t kFirstEnumerator<Priority> = 0;
template <class E>
constexpr uint32_t last_enumerator();
template <>
constexpr uint32_t last_enumerator<ErrorCode>() {
  return static_cast<uint32_t>(ErrorCode::deadline);
}
template <>
constexpr uint32_t last_enumerator<FinishReason>() {
  return static_cast<uint32_t>(FinishReason::deadline);
}
template <>
constexpr uint32_t last_enumerator<CacheAction>() {
  return static_cast<uint32_t>(CacheAction::warm);
}
template <>
constexpr uint32_t last_enumerator<Priority>() {
  return static_cast<uint32_t>(Priority::batch);
}
template <>
constexpr uint32_t last_enumerator<ModelsAction>() {
  return static_cast<uint32_t>(ModelsAction::remove);
}

/// Names the field already.
struct PathedError : MalformedBody {
  using MalformedBody::MalformedBody;
};

class Decoder {
 public:
  explicit Decoder(std::string_view body) : reader_(body), body_bytes_(body.size()) {}

  /// How much memory a message's lists may take beyond the floor, for each of its bytes.
  void allow(size_t per_byte) { budget_ = kBudgetFloor + per_byte * body_bytes_; }

  MsgpackReader& reader() { return reader_; }

  /// `or_nil`: nil keeps the value.
  template <class T>
  void read(T& value, const Path& path, bool or_nil = false) {
    try {
      if (or_nil && reader_.peek() == MsgpackReader::Kind::nil) reader_.skip();
      else read_value(value, path);
    } catch (const PathedError&) {
      throw;
    } catch (const MalformedBody& error) {
      throw PathedError(path.text() + ": " + error.what());
    }
  }

  /// The fields of a message or a part: the first `present` are there, later ones keep their defaults, unknown ones are
  /// skipped.
  template <class T>
  void read_fields(T& record, uint32_t present, const Path& path) {
    size_t index = 0;
    auto one = [&](auto& field) {
      if (index < present) read(field, Path{&path, T::kFieldNames, index}, true);
      index++;
    };
    std::apply([&](auto&... field) { (one(field), ...); }, record.fields());
    for (; index < present; index++) reader_.skip();
  }

 private:
  // A list's elements may take more memory than their bytes (an empty string: 32 to 1). All of a message's lists
  // together may take a budget, which no message that makes sense comes near.
  static constexpr size_t kBudgetFloor = 64 << 10;

  template <class T>
  void read_value(T& value, const Path& path) {
    if constexpr (std::is_same_v<T, bool>) {
      value = reader_.read_bool();
    } else if constexpr (std::is_same_v<T, std::string>) {
      value = reader_.read_text();
    } else if constexpr (std::is_floating_point_v<T>) {
      double number = reader_.read_float();
      if (std::isfinite(number) && std::fabs(number) > std::numeric_limits<T>::max())
        throw MalformedBody("the number is too large");
      value = static_cast<T>(number);
    } else if constexpr (std::is_enum_v<T>) {
      uint64_t number = reader_.read_uint(std::numeric_limits<uint64_t>::max());
      if (number < kFirstEnumerator<T> || number > last_enumerator<T>())
        throw MalformedBody("unknown value " + std::to_string(number) + ", known are " +
                            std::to_string(kFirstEnumerator<T>) + " to " + std::to_string(last_enumerator<T>()));
      value = static_cast<T>(number);
    } else if constexpr (std::is_unsigned_v<T>) {
      value = static_cast<T>(reader_.read_uint(std::numeric_limits<T>::max()));
    } else if constexpr (is_pair<T>) {
      uint32_t count = reader_.read_array();
      if (count != 2) throw MalformedBody("expected a pair, got " + std::to_string(count) + " elements");
      read(value.first, Path{&path, {}, 0});
      read(value.second, Path{&path, {}, 1});
    } else if constexpr (is_vector<T>) {
      read_vector(value, path);
    } else {
      read_fields(value, reader_.read_array(), path);
    }
  }

  template <class T>
  void read_vector(std::vector<T>& value, const Path& path) {
    uint32_t count = reader_.read_array();
    if (count > budget_ / sizeof(T))
      throw MalformedBody("a list of " + std::to_string(count) + " is too long for this message");
    budget_ -= count * sizeof(T);
    value.resize(count);
    for (size_t i = 0; i < count; i++) read(value[i], Path{&path, {}, i});
  }

  MsgpackReader reader_;
  size_t body_bytes_, budget_ = kBudgetFloor;
};

template <class M>
std::variant<Message, DecodeFailure> decode_as(Decoder& decoder, uint32_t present) {
  // A request's bytes are what its user is charged for; ids take four times as much at most. A reply's short pieces of
  // text may take more.
  constexpr size_t kRequestPerByte = 4, kReplyPerByte = 16;
  decoder.allow(M::kTag < 32 ? kRequestPerByte : kReplyPerByte);
  M message;
  Path root{nullptr, M::kName};
  auto failure = [&](const std::string& what) {
    DecodeFailure failure{ErrorCode::bad_request, what};
    if constexpr (requires { message.id; }) failure.id = message.id;
    return failure;
  };
  try {
    decoder.read_fields(message, present, root);
  } catch (const PathedError& error) {
    return failure(error.what());
  } catch (const MalformedBody& error) {
    return failure(root.text() + ": " + error.what());
  }
  if (size_t left = decoder.reader().left())
    return failure(root.text() + ": " + std::to_string(left) + " bytes too many");
  return Message(std::move(message));
}

using DecodeAs = std::variant<Message, DecodeFailure> (*)(Decoder&, uint32_t);
struct TableRow {
  uint32_t tag;
  DecodeAs decode;
};
template <class... M>
constexpr std::array<TableRow, sizeof...(M)> make_table(std::type_identity<std::variant<M...>>) {
  return {TableRow{M::kTag, decode_as<M>}...};
}
constexpr auto kTable = make_table(std::type_identity<Message>{});

}  // namespace

std::string encode_frame(const Message& message) {
  FrameBuffer buffer;
  buffer.bytes.assign(sizeof(uint32_t), '\0');
  Packer packer(buffer);
  std::visit([&](const auto& m) { pack_message(packer, m); }, message);
  auto length = static_cast<uint32_t>(buffer.bytes.size() - sizeof(uint32_t));
  for (int i = 0; i < 4; i++) buffer.bytes[i] = static_cast<char>(length >> (8 * i));
  return std::move(buffer.bytes);
}

std::variant<Message, DecodeFailure> decode(std::string_view body) {
  Decoder decoder(body);
  MsgpackReader& reader = decoder.reader();
  uint32_t present = 0, tag = 0;
  try {
    present = reader.read_array();
    if (present == 0) return DecodeFailure{ErrorCode::bad_request, "message: expected [tag, …], got an empty array"};
    decoder.read(tag, Path{nullptr, "tag"});
  } catch (const MalformedBody& error) {
    return DecodeFailure{ErrorCode::bad_request, std::string("message: ") + error.what()};
  }
  for (const TableRow& row : kTable)
    if (row.tag == tag) return row.decode(decoder, present - 1);

  DecodeFailure failure{ErrorCode::unknown_message, "unknown message tag " + std::to_string(tag)};
  try {
    if (present > 1) failure.id = static_cast<uint32_t>(reader.read_uint(std::numeric_limits<uint32_t>::max()));
  } catch (const MalformedBody&) {
    // No id to repeat: the answer goes to the connection.
  }
  return failure;
}

}  // namespace ellm::client
