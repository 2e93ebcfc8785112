#include "tools/bench/http.h"

#include <curl/curl.h>

#include <memory>
#include <mutex>
#include <stdexcept>

namespace ellm::bench {
namespace {

struct Receiver {
  HttpAnswer& answer;
  const std::function<void(std::string_view)>& on_data;
};

size_t receive(char* data, size_t size, size_t count, void* receiver) {
  auto& r = *static_cast<Receiver*>(receiver);
  r.answer.body.append(data, size * count);
  if (r.on_data) r.on_data({data, size * count});
  return size * count;
}

void initialise() {
  static std::once_flag once;
  std::call_once(once, [] { curl_global_init(CURL_GLOBAL_DEFAULT); });
}

}  // namespace

HttpAnswer http(const HttpRequest& request, const std::function<void(std::string_view)>& on_data) {
  initialise();
  const std::unique_ptr<CURL, decltype(&curl_easy_cleanup)> curl(curl_easy_init(), curl_easy_cleanup);
  if (!curl) throw std::runtime_error("libcurl cannot start");
  curl_slist* list = curl_slist_append(nullptr, "Content-Type: application/json");
  if (!request.key.empty()) list = curl_slist_append(list, ("Authorization: Bearer " + request.key).c_str());
  const std::unique_ptr<curl_slist, decltype(&curl_slist_free_all)> headers(list, curl_slist_free_all);
  HttpAnswer answer;
  Receiver receiver{answer, on_data};
  curl_easy_setopt(curl.get(), CURLOPT_URL, request.url.c_str());
  curl_easy_setopt(curl.get(), CURLOPT_HTTPHEADER, headers.get());
  curl_easy_setopt(curl.get(), CURLOPT_WRITEFUNCTION, receive);
  curl_easy_setopt(curl.get(), CURLOPT_WRITEDATA, &receiver);
  curl_easy_setopt(curl.get(), CURLOPT_NOSIGNAL, 1L);
  curl_easy_setopt(curl.get(), CURLOPT_CONNECTTIMEOUT, 10L);
  if (!request.body.empty()) {
    curl_easy_setopt(curl.get(), CURLOPT_POSTFIELDS, request.body.data());
    curl_easy_setopt(curl.get(), CURLOPT_POSTFIELDSIZE, static_cast<long>(request.body.size()));
  }
  if (const CURLcode code = curl_easy_perform(curl.get()); code != CURLE_OK)
    throw std::runtime_error(request.url + ": " + curl_easy_strerror(code));
  curl_easy_getinfo(curl.get(), CURLINFO_RESPONSE_CODE, &answer.status);
  return answer;
}

}  // namespace ellm::bench
