// See one_reply.h.
#include "daemon/one_reply.h"

#include <new>
#include <stdexcept>

#include "client/codec.h"
#include "daemon/chat_prompt.h"
#include "daemon/in_pool.h"

namespace ellm::daemon {

using client::ErrorCode;

client::Error to_error(uint32_t id, const Failure& failure) {
  return {id, failure.code, failure.message, failure.retry_after_ms};
}

std::string frame_of(uint32_t id, const std::function<client::Message()>& work) {
  try {
    return client::encode_frame(work());
  } catch (const PromptError& e) {
    return client::encode_frame(client::Error{id, e.code(), e.what(), 0});
  } catch (const std::length_error& e) {
    return client::encode_frame(client::Error{id, ErrorCode::too_large, e.what(), 0});
  } catch (const std::bad_alloc&) {
    return client::encode_frame(client::Error{id, ErrorCode::too_large, kNoMemory, 0});
  } catch (const std::exception& e) {
    return client::encode_frame(client::Error{id, ErrorCode::internal, e.what(), 0});
  }
}

}  // namespace ellm::daemon
