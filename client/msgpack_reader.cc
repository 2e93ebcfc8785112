// The formats of msgpack by their first byte.
#include "client/msgpack_reader.h"

#include <bit>

namespace ellm::client {
namespace {

using Kind = MsgpackReader::Kind;

Kind kind_of(unsigned char byte) {
  if (byte <= 0x7f || byte >= 0xe0) return Kind::integer;
  if (byte <= 0x8f) return Kind::map;
  if (byte <= 0x9f) return Kind::array;
  if (byte <= 0xbf) return Kind::text;
  switch (byte) {
    case 0xc0: return Kind::nil;
    case 0xc1: return Kind::invalid;
    case 0xc2:
    case 0xc3: return Kind::boolean;
    case 0xc4:
    case 0xc5:
    case 0xc6: return Kind::text;
    case 0xca:
    case 0xcb: return Kind::floating;
    case 0xd9:
    case 0xda:
    case 0xdb: return Kind::text;
    case 0xdc:
    case 0xdd: return Kind::array;
    case 0xde:
    case 0xdf: return Kind::map;
    default: return byte >= 0xcc && byte <= 0xd3 ? Kind::integer : Kind::extension;
  }
}

const char* name_of(Kind kind) {
  switch (kind) {
    case Kind::nil: return "nil";
    case Kind::boolean: return "a boolean";
    case Kind::integer: return "an integer";
    case Kind::floating: return "a float";
    case Kind::text: return "a string";
    case Kind::array: return "an array";
    case Kind::map: return "a map";
    case Kind::extension: return "an extension";
    case Kind::invalid: break;
  }
  return "a byte that is not msgpack (0xc1)";
}

}  // namespace

Kind MsgpackReader::peek() const {
  if (at_ >= body_.size()) throw MalformedBody("the message ends here, at byte " + std::to_string(at_));
  return kind_of(static_cast<unsigned char>(body_[at_]));
}

void MsgpackReader::unexpected(const char* wanted) const {
  throw MalformedBody(std::string("expected ") + wanted + ", got " + name_of(peek()));
}

std::string_view MsgpackReader::take(size_t bytes) {
  if (bytes > left())
    throw MalformedBody("needs " + std::to_string(bytes) + " more bytes, the message has " + std::to_string(left()));
  std::string_view taken = body_.substr(at_, bytes);
  at_ += bytes;
  return taken;
}

uint64_t MsgpackReader::big_endian(size_t bytes) {
  uint64_t value = 0;
  for (char c : take(bytes)) value = value << 8 | static_cast<unsigned char>(c);
  return value;
}

uint64_t MsgpackReader::read_uint(uint64_t max) {
  if (peek() != Kind::integer) unexpected("an unsigned integer");
  auto byte = static_cast<unsigned char>(take(1)[0]);
  uint64_t value = byte;
  bool negative = byte >= 0xe0;
  if (byte >= 0xcc && byte <= 0xcf) {
    value = big_endian(size_t{1} << (byte - 0xcc));
  } else if (byte >= 0xd0 && byte <= 0xd3) {
    size_t bytes = size_t{1} << (byte - 0xd0);
    value = big_endian(bytes);
    negative = value >> (8 * bytes - 1) & 1;
  }
  if (negative) throw MalformedBody("expected an unsigned integer, got a negative one");
  if (value > max) throw MalformedBody(std::to_string(value) + " is above " + std::to_string(max));
  return value;
}

double MsgpackReader::read_float() {
  Kind kind = peek();
  if (kind != Kind::floating && kind != Kind::integer) unexpected("a number");
  auto byte = static_cast<unsigned char>(take(1)[0]);
  if (byte == 0xca) return double{std::bit_cast<float>(static_cast<uint32_t>(big_endian(4)))};
  if (byte == 0xcb) return std::bit_cast<double>(big_endian(8));
  if (byte <= 0x7f) return byte;
  if (byte >= 0xe0) return static_cast<int8_t>(byte);
  if (byte <= 0xcf) return static_cast<double>(big_endian(size_t{1} << (byte - 0xcc)));
  size_t bytes = size_t{1} << (byte - 0xd0);
  auto unused_bits = 8 * (8 - bytes);
  return static_cast<double>(static_cast<int64_t>(big_endian(bytes) << unused_bits) >> unused_bits);
}

bool MsgpackReader::read_bool() {
  if (peek() != Kind::boolean) unexpected("a boolean");
  return static_cast<unsigned char>(take(1)[0]) == 0xc3;
}

std::string_view MsgpackReader::read_text() {
  if (peek() != Kind::text) unexpected("a string");
  auto byte = static_cast<unsigned char>(take(1)[0]);
  if (byte <= 0xbf) return take(byte & 0x1f);
  size_t length_bytes = size_t{1} << (byte >= 0xd9 ? byte - 0xd9 : byte - 0xc4);
  return take(big_endian(length_bytes));
}

uint32_t MsgpackReader::read_array() {
  if (peek() != Kind::array) unexpected("an array");
  auto byte = static_cast<unsigned char>(take(1)[0]);
  uint64_t count = byte <= 0x9f ? byte & 0x0f : big_endian(byte == 0xdc ? 2 : 4);
  if (count > left())
    throw MalformedBody("an array of " + std::to_string(count) + " elements in " + std::to_string(left()) + " bytes");
  return static_cast<uint32_t>(count);
}

/// Skips one header with its own bytes; returns how many values follow inside.
uint64_t MsgpackReader::skip_one() {
  switch (peek()) {
    case Kind::integer:
    case Kind::floating: read_float(); return 0;
    case Kind::text: read_text(); return 0;
    case Kind::array: return read_array();
    case Kind::map: {
      auto byte = static_cast<unsigned char>(take(1)[0]);
      return 2 * (byte <= 0x8f ? byte & 0x0f : big_endian(byte == 0xde ? 2 : 4));
    }
    case Kind::extension: {
      auto byte = static_cast<unsigned char>(take(1)[0]);
      bool fixed = byte >= 0xd4;  // fixext 1, 2, 4, 8, 16
      uint64_t bytes = fixed ? uint64_t{1} << (byte - 0xd4) : big_endian(size_t{1} << (byte - 0xc7));
      take(1 + bytes);  // the type, the data
      return 0;
    }
    case Kind::invalid: unexpected("msgpack");
    default: take(1); return 0;
  }
}

void MsgpackReader::skip() {
  for (uint64_t pending = 1; pending > 0; pending--) {
    pending += skip_one();
    if (pending - 1 > left()) throw MalformedBody("more elements than bytes");
  }
}

}  // namespace ellm::client
