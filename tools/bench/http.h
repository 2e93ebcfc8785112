// One POST or GET whose answer may be a stream of server-sent events. Blocking; any thread, each with requests of its
// own.
#pragma once
#include <functional>
#include <string>

namespace ellm::bench {

struct HttpRequest {
  std::string url, key, body;  // a body makes it a POST of JSON; key: for "Authorization: Bearer"
};

struct HttpAnswer {
  long status = 0;
  std::string body;
};

/// `on_data` sees what arrives as it arrives; it may be null. Throws std::runtime_error with the URL where there is no
/// answer.
HttpAnswer http(const HttpRequest& request, const std::function<void(std::string_view)>& on_data = nullptr);

}  // namespace ellm::bench
