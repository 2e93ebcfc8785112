// See metrics_server.h. HTTP by Boost.Beast: few connections, short requests, a time limit on everything.
#include "daemon/metrics_server.h"

#include <fcntl.h>
#include <sys/socket.h>

#include <boost/asio/awaitable.hpp>
#include <boost/asio/basic_socket_acceptor.hpp>
#include <boost/asio/co_spawn.hpp>
#include <boost/asio/detached.hpp>
#include <boost/asio/generic/stream_protocol.hpp>
#include <boost/asio/io_context.hpp>
#include <boost/asio/redirect_error.hpp>
#include <boost/asio/steady_timer.hpp>
#include <boost/asio/use_awaitable.hpp>
#include <boost/beast/core/basic_stream.hpp>
#include <boost/beast/core/flat_buffer.hpp>
#include <boost/beast/http.hpp>

namespace ellm::daemon {
namespace {

namespace asio = boost::asio;
namespace beast = boost::beast;
namespace http = beast::http;
using asio::generic::stream_protocol;
using boost::system::error_code;
using Acceptor = asio::basic_socket_acceptor<stream_protocol>;
using Stream = beast::basic_stream<stream_protocol>;
using Response = http::response<http::string_body>;

constexpr size_t kConnections = 16;
constexpr uint32_t kHeaderBytes = 8192;
constexpr auto kTimeout = std::chrono::seconds(10);  // of a request, of its answer, and between two
constexpr auto kAcceptPause = std::chrono::milliseconds(200);

int family_of(int fd) {
  sockaddr_storage address{};
  socklen_t size = sizeof address;
  return ::getsockname(fd, reinterpret_cast<sockaddr*>(&address), &size) == 0 ? address.ss_family : AF_UNIX;
}

}  // namespace

struct MetricsServer::Impl : std::enable_shared_from_this<Impl> {
  Impl(Loop& loop, int fd, std::function<std::string()> t)
      : acceptor(loop.context(), stream_protocol(family_of(fd), 0), ::fcntl(fd, F_DUPFD_CLOEXEC, 0)),
        pause(loop.context()), text(std::move(t)) {}

  Acceptor acceptor;
  asio::steady_timer pause;
  std::function<std::string()> text;
  size_t connections = 0;

  asio::awaitable<void> accept() {
    const auto self = shared_from_this();  // this coroutine may outlive the server
    while (acceptor.is_open()) {
      error_code error;
      stream_protocol::socket socket = co_await acceptor.async_accept(asio::redirect_error(asio::use_awaitable, error));
      if (!acceptor.is_open()) break;
      if (error) {  // out of descriptors, usually
        pause.expires_after(kAcceptPause);
        co_await pause.async_wait(asio::redirect_error(asio::use_awaitable, error));
      } else if (connections < kConnections) {
        ++connections;
        asio::co_spawn(acceptor.get_executor(), serve(Stream(std::move(socket))), asio::detached);
      }
    }
  }

  asio::awaitable<void> serve(Stream stream) {
    const auto self = shared_from_this();
    const std::shared_ptr<void> counted(nullptr, [self](void*) { --self->connections; });
    beast::flat_buffer buffer(2 * kHeaderBytes);
    for (bool open = true; open;) {
      http::request_parser<http::empty_body> parser;
      parser.header_limit(kHeaderBytes);
      stream.expires_after(kTimeout);
      error_code error;
      co_await http::async_read(stream, buffer, parser, asio::redirect_error(asio::use_awaitable, error));
      if (error || !acceptor.is_open()) break;
      Response response = answer(parser.get());
      stream.expires_after(kTimeout);
      co_await http::async_write(stream, response, asio::redirect_error(asio::use_awaitable, error));
      open = !error && response.keep_alive();
    }
    error_code ignored;
    stream.socket().shutdown(stream_protocol::socket::shutdown_both, ignored);
  }

  Response answer(const http::request<http::empty_body>& request) const {
    Response response{http::status::ok, request.version()};
    response.keep_alive(request.keep_alive());
    response.set(http::field::content_type, "text/plain; charset=utf-8");
    const auto target = request.target();
    if (request.method() != http::verb::get && request.method() != http::verb::head) {
      response.result(http::status::method_not_allowed);
      response.set(http::field::allow, "GET, HEAD");
      response.body() = "only GET and HEAD\n";
    } else if (target.substr(0, target.find('?')) != "/metrics") {
      response.result(http::status::not_found);
      response.body() = "metrics are at /metrics\n";
    } else {
      response.set(http::field::content_type, "text/plain; version=0.0.4; charset=utf-8");
      response.body() = text();
    }
    const size_t length = response.body().size();
    if (request.method() == http::verb::head) response.body().clear();
    response.content_length(length);
    return response;
  }
};

MetricsServer::MetricsServer(Loop& loop, int fd, std::function<std::string()> text)
    : impl_(std::make_shared<Impl>(loop, fd, std::move(text))) {
  // The coroutine's own frame holds it; g++ 12 must not see a capture in the operand of co_await.
  asio::co_spawn(impl_->acceptor.get_executor(), impl_->accept(), asio::detached);
}

MetricsServer::~MetricsServer() {
  error_code ignored;
  impl_->acceptor.close(ignored);
  impl_->pause.cancel();
}

}  // namespace ellm::daemon
