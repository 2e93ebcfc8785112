// See hub_token.h.
#include "client/pull/hub_token.h"

#include <cstdlib>
#include <fstream>
#include <string_view>

namespace ellm::pull {
namespace {

std::string variable(const char* name) {
  const char* value = std::getenv(name);
  return value ? value : "";
}

/// As the hub's own tools clean a token: without blanks around it or line ends in it.
std::string cleaned(std::string text) {
  std::erase(text, '\r');
  std::erase(text, '\n');
  const size_t first = text.find_first_not_of(" \t");
  if (first == std::string::npos) return {};
  return text.substr(first, text.find_last_not_of(" \t") - first + 1);
}

std::string token_file() {
  if (const std::string path = variable("HF_TOKEN_PATH"); !path.empty()) return path;
  if (const std::string home = variable("HF_HOME"); !home.empty()) return home + "/token";
  if (const std::string cache = variable("XDG_CACHE_HOME"); !cache.empty()) return cache + "/huggingface/token";
  const std::string home = variable("HOME");
  return home.empty() ? "" : home + "/.cache/huggingface/token";
}

}  // namespace

std::string hub_token() {
  for (const char* name : {"HF_TOKEN", "HUGGING_FACE_HUB_TOKEN"}) {
    if (const std::string token = cleaned(variable(name)); !token.empty()) return token;
  }
  const std::string off = variable("HF_HUB_DISABLE_IMPLICIT_TOKEN");
  if (!off.empty() && off != "0") return {};
  constexpr size_t kLongest = 4096;
  std::ifstream file(token_file(), std::ios::binary);
  std::string text(kLongest, '\0');
  file.read(text.data(), static_cast<std::streamsize>(text.size()));
  text.resize(static_cast<size_t>(file.gcount()));
  return cleaned(std::move(text));
}

}  // namespace ellm::pull
