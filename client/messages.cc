// Names of the protocol's enumerators, as users and JSON see them.
#include "client/messages.h"

namespace ellm::client {

const char* name_of(ErrorCode code) {
  switch (code) {
    case ErrorCode::bad_request: return "bad_request";
    case ErrorCode::unknown_message: return "unknown_message";
    case ErrorCode::unsupported_version: return "unsupported_version";
    case ErrorCode::too_large: return "too_large";
    case ErrorCode::busy: return "busy";
    case ErrorCode::no_such_model: return "no_such_model";
    case ErrorCode::model_failed: return "model_failed";
    case ErrorCode::template_failed: return "template_failed";
    case ErrorCode::no_such_request: return "no_such_request";
    case ErrorCode::shutting_down: return "shutting_down";
    case ErrorCode::internal: return "internal";
    case ErrorCode::cancelled: return "cancelled";
    case ErrorCode::denied: return "denied";
    case ErrorCode::deadline: return "deadline";
  }
  return "unknown";
}

const char* name_of(FinishReason reason) {
  switch (reason) {
    case FinishReason::stop: return "stop";
    case FinishReason::length: return "length";
    case FinishReason::cancelled: return "cancelled";
    case FinishReason::deadline: return "deadline";
  }
  return "unknown";
}

const char* name_of(Priority priority) {
  switch (priority) {
    case Priority::interactive: return "interactive";
    case Priority::batch: return "batch";
  }
  return "unknown";
}

}  // namespace ellm::client
