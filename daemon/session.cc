// See session.h. Nothing is allocated for what a length claims, only for what has arrived; a peer that does not read is
// disconnected after a while, so that nobody else pays for it.
#include "daemon/session.h"

#include <sys/socket.h>
#include <sys/uio.h>
#include <unistd.h>

#include <boost/asio/awaitable.hpp>
#include <boost/asio/co_spawn.hpp>
#include <boost/asio/local/stream_protocol.hpp>
#include <boost/asio/redirect_error.hpp>
#include <boost/asio/steady_timer.hpp>
#include <boost/asio/use_awaitable.hpp>
#include <cerrno>
#include <cstring>
#include <deque>
#include <new>
#include <optional>
#include <vector>

#include "daemon/conversation.h"
#include "daemon/in_pool.h"
#include "daemon/log.h"

namespace ellm::daemon {
namespace {

namespace asio = boost::asio;
using asio::local::stream_protocol;
using boost::system::error_code;

constexpr size_t kHeaderBytes = 4, kReadBytes = 64 << 10;
constexpr size_t kInlineDecodeBytes = 64 << 10;  // larger frames are decoded in the pool
constexpr size_t kGather = 64;                   // frames of one write
constexpr size_t kMostDescriptors = 253;         // that the kernel lets one message carry
constexpr auto kFlushTime = std::chrono::seconds(2);

uint32_t frame_length(std::string_view begun) {
  return client::frame_length(reinterpret_cast<const unsigned char*>(begun.data()));
}

class SocketSession : public Session, public std::enable_shared_from_this<SocketSession> {
 public:
  SocketSession(Services& services, stream_protocol::socket socket, const Peer& peer,
                std::shared_ptr<Holdings> holdings, Charge connection, std::function<void(Session*)> ended)
      : services_(services), socket_(std::move(socket)), flush_timer_(services.loop.context()),
        stall_timer_(services.loop.context()), peer_(peer), holdings_(std::move(holdings)),
        connection_(std::move(connection)), ended_(std::move(ended)) {
    socket_.non_blocking(true);
  }

  void start() {
    conversation_ = std::make_shared<Conversation>(services_, peer_, holdings_,
                                                   [this](std::string frame) { send(std::move(frame)); });
    asio::co_spawn(
        socket_.get_executor(), [self = shared_from_this()] { return self->read_frames(); },
        [self = shared_from_this()](std::exception_ptr error) { self->reader_ended(error); });
  }

  void cancel_all() override { conversation_->cancel_all(); }

  void finish() override {
    if (closed_) return;
    finishing_ = true;
    if (out_.empty()) return close();
    flush_timer_.expires_after(kFlushTime);
    flush_timer_.async_wait([self = shared_from_this()](error_code error) {
      if (!error) self->close();
    });
  }

 private:
  asio::awaitable<void> read_frames();
  asio::awaitable<bool> take_frame(size_t length);
  ssize_t receive_some();
  bool keep_descriptors(std::vector<Descriptor> descriptors, bool lost);
  HandedOver descriptors_up_to(uint64_t end);
  asio::awaitable<Conversation::Decoded> decode_in_pool(std::string bytes, size_t begin, size_t length);
  bool pay_for(size_t more);
  void reader_ended(std::exception_ptr error);
  void send(std::string frame);
  void write();
  void watch_reading();
  void drop(const std::string& why);
  void close_soon();
  void close();

  Services& services_;
  stream_protocol::socket socket_;
  asio::steady_timer flush_timer_, stall_timer_;
  const Peer peer_;
  const std::shared_ptr<Holdings> holdings_;
  Charge connection_;
  std::function<void(Session*)> ended_;
  std::shared_ptr<Conversation> conversation_;
  const std::unique_ptr<char[]> chunk_{new char[kReadBytes]};
  std::string in_;  // what has arrived; handled up to in_at_
  size_t in_at_ = 0;
  uint64_t received_ = 0;  // bytes, ever
  struct Arrival {
    uint64_t end;  // of the bytes with which they came
    HandedOver handed;
  };
  std::deque<Arrival> arrivals_;
  Charge in_charge_, out_charge_;  // of a large frame that is arriving; of what waits to be sent
  std::deque<std::string> out_;
  size_t out_bytes_ = 0, out_sent_ = 0;  // out_sent_: of the first frame
  uint64_t taken_ = 0;                   // bytes, ever
  bool watching_ = false, writing_ = false, finishing_ = false, dropped_ = false, closed_ = false;
};

// ---- in -------------------------------------------------------------------------------------------------------------

asio::awaitable<void> SocketSession::read_frames() {
  const uint64_t frame_limit = services_.config.limits.frame.value;
  while (!closed_ && !finishing_) {
    const std::string_view have = std::string_view(in_).substr(in_at_);
    if (have.size() >= kHeaderBytes) {
      const uint32_t length = frame_length(have);
      if (length > frame_limit) {
        conversation_->refuse(client::ErrorCode::too_large, "a frame of " + std::to_string(length) +
                                                                " bytes; the limit is " + std::to_string(frame_limit));
        co_return finish();
      }
      if (have.size() - kHeaderBytes >= length) {
        if (!co_await take_frame(length)) co_return finish();
        continue;
      }
    }
    in_.erase(0, std::exchange(in_at_, 0));
    error_code error;
    co_await socket_.async_wait(stream_protocol::socket::wait_read, asio::redirect_error(asio::use_awaitable, error));
    if (error || closed_) co_return;
    const ssize_t got = receive_some();
    if (got < 0) continue;
    if (got == 0) co_return;  // the peer is gone
    if (in_.size() > kReadBytes && in_.size() - kHeaderBytes < frame_length(in_) &&
        !pay_for(static_cast<size_t>(got))) {
      conversation_->refuse(client::ErrorCode::busy, "this user's messages hold too many bytes; try again later");
      co_return finish();
    }
  }
}

/// What there is to read, with the descriptors that come along. 0: the peer is gone; below 0: nothing yet.
ssize_t SocketSession::receive_some() {
  alignas(cmsghdr) char control[CMSG_SPACE(kMostDescriptors * sizeof(int))];
  iovec part{chunk_.get(), kReadBytes};
  msghdr message{};
  message.msg_iov = &part;
  message.msg_iovlen = 1;
  message.msg_control = control;
  message.msg_controllen = sizeof control;
  const ssize_t got = ::recvmsg(socket_.native_handle(), &message, MSG_CMSG_CLOEXEC);
  if (got < 0) return errno == EAGAIN || errno == EWOULDBLOCK || errno == EINTR ? -1 : 0;
  in_.append(chunk_.get(), static_cast<size_t>(got));
  received_ += static_cast<uint64_t>(got);
  std::vector<Descriptor> descriptors;
  for (cmsghdr* head = CMSG_FIRSTHDR(&message); head != nullptr; head = CMSG_NXTHDR(&message, head)) {
    if (head->cmsg_level != SOL_SOCKET || head->cmsg_type != SCM_RIGHTS) continue;
    for (size_t at = CMSG_LEN(0); at + sizeof(int) <= head->cmsg_len; at += sizeof(int)) {
      int fd;
      std::memcpy(&fd, reinterpret_cast<const char*>(head) + at, sizeof fd);
      descriptors.emplace_back(fd);
    }
  }
  const bool lost = (message.msg_flags & MSG_CTRUNC) != 0;
  return keep_descriptors(std::move(descriptors), lost) ? got : 0;
}

/// Only an administrator hands files over; others' are closed as they come. False: the connection is to be closed.
bool SocketSession::keep_descriptors(std::vector<Descriptor> descriptors, bool lost) {
  if ((descriptors.empty() && !lost) || !peer_.admin) return true;
  Arrival arrival{received_, {std::move(descriptors), {}, lost}};
  arrival.handed.charge = Charge::take(holdings_, &Holdings::descriptors, arrival.handed.descriptors.size(),
                                       services_.config.limits.descriptors_per_user);
  if (!arrival.handed.charge) {
    conversation_->refuse(client::ErrorCode::busy, "this user has handed over too many files; try again later");
    finish();
    return false;
  }
  arrivals_.push_back(std::move(arrival));
  return true;
}

/// Those of the frame that ends at `end`. The kernel ends a read behind bytes that descriptors came with, so they
/// belong to the first frame that ends there or later.
HandedOver SocketSession::descriptors_up_to(uint64_t end) {
  HandedOver handed;
  for (; !arrivals_.empty() && arrivals_.front().end <= end; arrivals_.pop_front()) {
    handed = std::move(arrivals_.front().handed);
  }
  return handed;
}

/// Charges a large frame to the user while it arrives.
bool SocketSession::pay_for(size_t more) {
  const uint64_t limit = services_.config.limits.bytes_per_user.value;
  if (in_charge_) return in_charge_.grow(more, limit);
  in_charge_ = Charge::take(holdings_, &Holdings::bytes, in_.size(), limit);
  return static_cast<bool>(in_charge_);
}

/// Handles the frame at the head of what has arrived. False: the connection is to be closed.
asio::awaitable<bool> SocketSession::take_frame(size_t length) {
  in_charge_ = Charge();
  Charge bytes = Charge::take(holdings_, &Holdings::bytes, length, services_.config.limits.bytes_per_user.value);
  if (!bytes && length > kInlineDecodeBytes) {  // not decoded to find its id: that takes memory which nobody pays for
    conversation_->refuse(client::ErrorCode::busy, "this user's messages hold too many bytes; try again later");
    co_return false;
  }
  const size_t begin = in_at_ + kHeaderBytes;
  HandedOver handed = descriptors_up_to(received_ - (in_.size() - begin - length));
  if (length <= kInlineDecodeBytes) {
    in_at_ = begin + length;
    co_return conversation_->receive(client::decode(std::string_view(in_).substr(begin, length)), std::move(bytes),
                                     std::move(handed));
  }
  std::string rest = in_.substr(begin + length), body = std::exchange(in_, std::move(rest));
  in_at_ = 0;
  auto decoded = co_await decode_in_pool(std::move(body), begin, length);
  co_return conversation_->receive(std::move(decoded), std::move(bytes), std::move(handed));
}

asio::awaitable<Conversation::Decoded> SocketSession::decode_in_pool(std::string bytes, size_t begin, size_t length) {
  const auto shared = std::make_shared<const std::string>(std::move(bytes));
  // g++ 12 destroys what a lambda inside the operand of co_await captures twice (GCC bug 99576): it may only refer.
  const auto* text = &shared;
  co_return co_await asio::async_initiate<const asio::use_awaitable_t<>, void(Conversation::Decoded)>(
      [this, text, begin, length](auto handler) {
        const auto work = [shared = *text, begin, length] {
          return client::decode(std::string_view(*shared).substr(begin, length));
        };
        auto then = [handler = std::move(handler)](std::optional<Conversation::Decoded> decoded) mutable {
          if (!decoded) decoded = client::DecodeFailure{client::ErrorCode::too_large, kNoMemory};
          handler(std::move(*decoded));
        };
        in_pool(services_.pool, services_.loop, PreparePool::weight_of(length), work, std::move(then));
      },
      asio::use_awaitable);
}

void SocketSession::reader_ended(std::exception_ptr error) {
  if (error) {
    try {
      std::rethrow_exception(error);
    } catch (const std::exception& e) {
      log_failure("a connection failed", e);
    }
  }
  if (!finishing_ || error) close();
}

// ---- out ------------------------------------------------------------------------------------------------------------

void SocketSession::send(std::string frame) {
  if (closed_ || dropped_) return;
  try {
    out_bytes_ += frame.size();
    out_.push_back(std::move(frame));
    if (!writing_) write();
  } catch (const std::bad_alloc&) {  // a peer that misses a frame waits for ever: its reader ends instead, and closes
    dropped_ = true;
    error_code ignored;
    socket_.shutdown(stream_protocol::socket::shutdown_both, ignored);
    return;
  }
  if (out_.empty()) return;
  // What waits is charged to the user, over all of his connections.
  out_charge_ = Charge();
  out_charge_ = Charge::take(holdings_, &Holdings::bytes, out_bytes_, services_.config.limits.bytes_per_user.value);
  if (!out_charge_) return drop("leaves too many replies unread");
  if (out_bytes_ > services_.config.limits.unread.value && !watching_) watch_reading();
}

/// While more waits than may, something must be taken now and then.
void SocketSession::watch_reading() {
  watching_ = true;
  stall_timer_.expires_after(std::chrono::seconds(services_.config.limits.unread_seconds));
  stall_timer_.async_wait([self = shared_from_this(), taken = taken_](error_code error) {
    self->watching_ = false;
    if (error || self->closed_ || self->out_bytes_ <= self->services_.config.limits.unread.value) return;
    if (self->taken_ == taken) return self->drop("does not read its replies");
    self->watch_reading();
  });
}

/// Sends what the socket takes now; the rest when it takes more.
void SocketSession::write() {
  while (!out_.empty()) {
    std::vector<asio::const_buffer> buffers;
    for (const std::string& frame : out_) {
      buffers.push_back(buffers.empty() ? asio::buffer(frame) + out_sent_ : asio::buffer(frame));
      if (buffers.size() == kGather) break;
    }
    error_code error;
    const size_t sent = socket_.write_some(buffers, error);
    if (error == asio::error::would_block || error == asio::error::try_again) {
      writing_ = true;
      return socket_.async_wait(stream_protocol::socket::wait_write,
                                [self = shared_from_this()](error_code wait_error) {
                                  self->writing_ = false;
                                  if (!wait_error && !self->closed_) self->write();
                                });
    }
    if (error) return drop("");  // it is gone
    out_bytes_ -= sent;
    taken_ += sent;
    out_sent_ += sent;
    while (!out_.empty() && out_sent_ >= out_.front().size()) {
      out_sent_ -= out_.front().size();
      out_.pop_front();
    }
  }
  out_charge_ = Charge();
  if (finishing_) close_soon();
}

/// Nothing more is sent.
void SocketSession::drop(const std::string& why) {
  if (!why.empty()) {
    log(Priority::warning, "disconnected: pid " + std::to_string(peer_.pid) + " of uid " + std::to_string(peer_.uid) +
                               " " + why + " (" + std::to_string(out_bytes_) + " bytes wait)");
  }
  dropped_ = true;
  out_.clear();
  out_bytes_ = out_sent_ = 0;
  out_charge_ = Charge();
  close_soon();
}

/// Whoever sends may be in the midst of a request of this connection.
void SocketSession::close_soon() {
  services_.loop.post([self = shared_from_this()] { self->close(); });
}

void SocketSession::close() {
  if (std::exchange(closed_, true)) return;
  conversation_->close();
  error_code ignored;
  socket_.close(ignored);
  flush_timer_.cancel();
  stall_timer_.cancel();
  out_.clear();
  connection_ = Charge();
  ended_(this);
}

}  // namespace

std::shared_ptr<Session> start_session(Services& services, int fd, const Peer& peer, std::shared_ptr<Holdings> holdings,
                                       Charge connection, std::function<void(Session*)> ended) {
  stream_protocol::socket socket(services.loop.context());
  error_code error;
  socket.assign(stream_protocol(), fd, error);
  if (error) {
    ::close(fd);
    throw boost::system::system_error(error);
  }
  auto session = std::make_shared<SocketSession>(services, std::move(socket), peer, std::move(holdings),
                                                 std::move(connection), std::move(ended));
  session->start();
  return session;
}

}  // namespace ellm::daemon
