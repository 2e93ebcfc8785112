// A connected Unix stream socket that sends whole frames and receives them. One thread may send while another receives.
#pragma once
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>

namespace ellm::client {

class UnixSocket {
 public:
  /// Throws ConnectionError: bad_path where no socket can be, absent where one may come to be, denied.
  explicit UnixSocket(const std::string& path);
  ~UnixSocket();
  UnixSocket(const UnixSocket&) = delete;
  UnixSocket& operator=(const UnixSocket&) = delete;

  /// False when the peer is gone and cannot have the frame whole. `descriptors` (at most 253) travel with it and stay
  /// the caller's.
  bool send(std::string_view frame, std::span<const int> descriptors = {});
  /// The peer has gone and left nothing to read. Does not wait.
  bool at_end() const;

  enum class Wait { data, timeout };
  /// Waits for something to read, for `timeout_ms` (-1: without end), or until a signal (timeout).
  Wait wait(int timeout_ms) const;

  /// Reads once what there is; false at the end of the stream.
  bool receive();
  /// Both in one system call: waits as wait() does and reads what there is. Absent: nothing came.
  std::optional<bool> receive_within(int timeout_ms);
  /// The next whole body among what was received; valid until the next receive(). Throws ConnectionError on an
  /// impossible length.
  std::optional<std::string_view> next_body();

  /// Wakes a thread that waits and ends both directions.
  void shut_down();

 private:
  std::optional<bool> receive_once();

  int fd_;
  std::unique_ptr<char[]> chunk_;
  std::string received_;
  size_t taken_ = 0;             // of received_
  int receive_timeout_ms_ = -1;  // that the socket has been given
};

}  // namespace ellm::client
