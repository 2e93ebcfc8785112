// Messages to frames and back; the only code that knows msgpack. Pure; any thread.
#pragma once
#include <optional>
#include <string>
#include <string_view>
#include <variant>

#include "client/messages.h"

namespace ellm::client {

/// The whole frame: u32 length and msgpack.
std::string encode_frame(const Message& message);

struct DecodeFailure {
  ErrorCode code;       // bad_request, unknown_message
  std::string message;  // what is wrong and where
  uint32_t id = 0;      // the request's, if it could be read
};

/// Decodes one frame's body (without the length). Allocates no more than a small multiple of the body's size.
std::variant<Message, DecodeFailure> decode(std::string_view body);

/// Length of the body that follows a frame's first four bytes.
inline uint32_t frame_length(const unsigned char header[4]) {
  return uint32_t{header[0]} | uint32_t{header[1]} << 8 | uint32_t{header[2]} << 16 | uint32_t{header[3]} << 24;
}

}  // namespace ellm::client
