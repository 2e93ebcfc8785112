// What a client's calls throw.
#pragma once
#include <cstdint>
#include <stdexcept>
#include <string>

#include "client/messages.h"

namespace ellm::client {

/// The daemon answered with an error.
class ClientError : public std::runtime_error {
 public:
  ClientError(ErrorCode code, const std::string& message, uint32_t retry_after_ms = 0)
      : std::runtime_error(message), code_(code), retry_after_ms_(retry_after_ms) {}
  ErrorCode code() const { return code_; }
  /// With busy: when to try again, in milliseconds; 0 where nothing is known.
  uint32_t retry_after_ms() const { return retry_after_ms_; }

 private:
  ErrorCode code_;
  uint32_t retry_after_ms_;
};

/// There is no daemon to talk to, or no longer, or it speaks another protocol. The message says what to do.
class ConnectionError : public std::runtime_error {
 public:
  enum class Kind { absent, denied, lost, protocol, bad_path };
  ConnectionError(Kind kind, const std::string& message, bool request_sent = false)
      : std::runtime_error(message), kind_(kind), request_sent_(request_sent) {}
  Kind kind() const { return kind_; }
  /// True where the daemon may have begun the request, or even finished it; false where it cannot have.
  bool request_sent() const { return request_sent_; }

 private:
  Kind kind_;
  bool request_sent_;
};

}  // namespace ellm::client
