// See source.h.
#include "client/pull/source.h"

#include <curl/curl.h>

#include <memory>

#include "client/pull/failure.h"
#include "daemon/format/model_name.h"

namespace ellm::pull {
namespace {

constexpr uint32_t kMostParts = 1000;

using Url = std::unique_ptr<CURLU, decltype([](CURLU* u) { curl_url_cleanup(u); })>;

std::string part_of(CURLU* url, CURLUPart part, unsigned flags = 0) {
  char* text = nullptr;
  if (curl_url_get(url, part, &text, flags) != CURLUE_OK) return {};
  std::string out = text;
  curl_free(text);
  return out;
}

Url parse_url(const std::string& text) {
  Url url(curl_url());
  const CURLUcode code = curl_url_set(url.get(), CURLUPART_URL, text.c_str(), CURLU_NON_SUPPORT_SCHEME);
  if (code != CURLUE_OK) throw PullError(EX_USAGE, "'" + text + "' is no address: " + curl_url_strerror(code));
  const std::string scheme = part_of(url.get(), CURLUPART_SCHEME);
  if (scheme != "http" && scheme != "https")
    throw PullError(EX_USAGE, "'" + text + "': only http, https and hf: addresses can be pulled");
  return url;
}

/// Every byte that means something in an address, escaped; slashes stay.
std::string escape_path(std::string_view path) {
  constexpr char kDigits[] = "0123456789ABCDEF";
  std::string out;
  for (const char c : path) {
    const bool plain = (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') ||
                       std::string_view("-._~/").find(c) != std::string_view::npos;
    if (plain) {
      out += c;
    } else {
      const auto byte = static_cast<unsigned char>(c);
      out += {'%', kDigits[byte >> 4], kDigits[byte & 15]};
    }
  }
  return out;
}

/// hf:OWNER/REPO[@REVISION]/FILE
std::string hub_url(const std::string& argument, const std::string& hub) {
  const std::string rest = argument.substr(3);
  const size_t owner = rest.find('/'), repository = owner == std::string::npos ? owner : rest.find('/', owner + 1);
  if (owner == 0 || repository == std::string::npos || repository == owner + 1 || repository + 1 == rest.size()) {
    throw PullError(
        EX_USAGE,
        "'" + argument + "' is not hf:OWNER/REPO/FILE, such as hf:ggml-org/models/tinyllamas/stories260K.gguf");
  }
  std::string model = rest.substr(0, repository), revision = "main";
  if (const size_t at = model.find('@'); at != std::string::npos) {
    revision = model.substr(at + 1);
    model.resize(at);
  }
  return hub + "/" + escape_path(model) + "/resolve/" + escape_path(revision) + "/" +
         escape_path(rest.substr(repository + 1));
}

bool is_below(const std::string& url, const std::string& hub) { return url.starts_with(hub + "/"); }

/// The file that a page of the hub shows: HUB/OWNER/REPO/blob/REVISION/FILE.
std::string file_of_page(std::string url, const std::string& hub) {
  size_t at = hub.size();
  for (int i = 0; i < 3 && at != std::string::npos; ++i) at = url.find('/', i == 0 ? at : at + 1);
  if (at != std::string::npos && url.compare(at, 6, "/blob/") == 0) url.replace(at, 6, "/resolve/");
  return url;
}

}  // namespace

bool is_remote(const std::string& argument) {
  return argument.starts_with("hf:") || argument.find("://") != std::string::npos;
}

std::string public_address(const std::string& text) {
  const Url url(curl_url());
  if (curl_url_set(url.get(), CURLUPART_URL, text.c_str(), CURLU_NON_SUPPORT_SCHEME) != CURLUE_OK) return text;
  for (const CURLUPart part :
       {CURLUPART_USER, CURLUPART_PASSWORD, CURLUPART_OPTIONS, CURLUPART_QUERY, CURLUPART_FRAGMENT}) {
    curl_url_set(url.get(), part, nullptr, 0);
  }
  return part_of(url.get(), CURLUPART_URL);
}

Source parse_source(const std::string& argument, const std::string& hub, const std::string& name) {
  std::string address = argument.starts_with("hf:") ? hub_url(argument, hub) : argument;
  Source source;
  source.hub = is_below(address, hub);
  if (source.hub) address = file_of_page(std::move(address), hub);
  const Url url = parse_url(address);
  const std::string path = part_of(url.get(), CURLUPART_PATH, CURLU_URLDECODE),
                    raw = part_of(url.get(), CURLUPART_PATH);
  const format::PartName part = format::parse_part_name(path);
  if (name.empty() && !path.ends_with(".gguf")) {
    throw PullError(EX_USAGE, public_address(address) +
                                  ": does not end in the name of a .gguf file: say what to call the model with --name");
  }
  source.name = name.empty() ? part.stem : name;
  if (const std::string fault = format::model_name_fault(source.name); !fault.empty()) {
    throw PullError(EX_USAGE, public_address(address) + ": " + fault + ": choose one with --name");
  }
  if (part.count == 1) {
    source.urls.push_back(address);
    return source;
  }
  if (part.count > kMostParts)
    throw PullError(EX_USAGE, public_address(address) + ": " + std::to_string(part.count) + " parts are too many");
  // The part's number stands in the raw path as it does in the decoded one: digits and dashes are never escaped.
  const std::string tail = format::part_file_name("", part.number, part.count);
  const size_t at = raw.rfind(tail);
  if (at == std::string::npos)
    throw PullError(EX_USAGE, public_address(address) + ": the number of the part cannot be found in the address");
  for (uint32_t number = 1; number <= part.count; ++number) {
    std::string other = raw;
    other.replace(at, tail.size(), format::part_file_name("", number, part.count));
    curl_url_set(url.get(), CURLUPART_PATH, other.c_str(), 0);
    source.urls.push_back(part_of(url.get(), CURLUPART_URL));
  }
  return source;
}

}  // namespace ellm::pull
