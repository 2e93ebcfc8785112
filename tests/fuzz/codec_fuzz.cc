// libFuzzer: what decode() accepts can be encoded, and decoded again to the same bytes.
#include <cstdlib>

#include "client/codec.h"

using ellm::client::Message;

extern "C" int LLVMFuzzerTestOneInput(const unsigned char* data, size_t size) {
  auto decoded = ellm::client::decode({reinterpret_cast<const char*>(data), size});
  auto* message = std::get_if<Message>(&decoded);
  if (!message) return 0;
  std::string frame = ellm::client::encode_frame(*message);
  auto again = ellm::client::decode(std::string_view(frame).substr(4));
  if (!std::holds_alternative<Message>(again) || ellm::client::encode_frame(std::get<Message>(again)) != frame) abort();
  return 0;
}
