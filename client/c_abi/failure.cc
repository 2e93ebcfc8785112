// ellm.h: exceptions become codes; the message is the thread's.
#include <new>
#include <string>
#include <system_error>

#include "client/c_abi/handles.h"

namespace ellm::client::c_abi {
namespace {

struct LastError {
  std::string message;
  uint32_t retry_after_ms = 0;
  bool request_sent = false;
};

LastError& last() {
  thread_local LastError error;
  return error;
}

int code_of(ConnectionError::Kind kind) {
  switch (kind) {
    case ConnectionError::Kind::absent: return ELLM_E_ABSENT;
    case ConnectionError::Kind::denied: return ELLM_E_DENIED;
    case ConnectionError::Kind::lost: return ELLM_E_LOST;
    case ConnectionError::Kind::protocol: return ELLM_E_PROTOCOL;
    case ConnectionError::Kind::bad_path: return ELLM_E_BAD_PATH;
  }
  return ELLM_E_INTERNAL;
}

int note(int code, const char* message, uint32_t retry_after_ms = 0, bool request_sent = false) {
  last() = {message, retry_after_ms, request_sent};
  return code;
}

}  // namespace

int note_failure() noexcept {
  try {
    try {
      throw;
    } catch (const ClientError& error) {
      return note(static_cast<int>(error.code()), error.what(), error.retry_after_ms());
    } catch (const ConnectionError& error) {
      return note(code_of(error.kind()), error.what(), 0, error.request_sent());
    } catch (const BadArgument& bad) {
      return note(ELLM_E_ARGUMENT, bad.what);
    } catch (const std::system_error& error) {
      return note(ELLM_E_FILE, error.what());
    } catch (const std::bad_alloc&) {
      return note(ELLM_E_MEMORY, "out of memory");
    } catch (const std::exception& error) {
      return note(ELLM_E_INTERNAL, error.what());
    }
  } catch (...) {
    return ELLM_E_MEMORY;  // there was none for the message
  }
}

}  // namespace ellm::client::c_abi

using namespace ellm::client;

uint32_t ellm_abi_version(void) { return ELLM_ABI_VERSION; }
const char* ellm_version(void) { return ELLM_VERSION; }

const char* ellm_error_message(void) { return c_abi::last().message.c_str(); }
uint32_t ellm_error_retry_after_ms(void) { return c_abi::last().retry_after_ms; }
int ellm_error_request_sent(void) { return c_abi::last().request_sent; }

const char* ellm_error_name(int code) {
  switch (code) {
    case ELLM_OK: return "ok";
    case ELLM_E_ABSENT: return "absent";
    case ELLM_E_DENIED: return "denied";
    case ELLM_E_LOST: return "lost";
    case ELLM_E_PROTOCOL: return "protocol";
    case ELLM_E_BAD_PATH: return "bad_path";
    case ELLM_E_ARGUMENT: return "argument";
    case ELLM_E_MEMORY: return "memory";
    case ELLM_E_FILE: return "file";
    case ELLM_END: return "end";
    case ELLM_TIMEOUT: return "timeout";
  }
  return name_of(static_cast<ErrorCode>(code));
}
