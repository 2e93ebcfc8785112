// What stands behind ellm.h's handles, and how an exception becomes a code. Any thread; see ellm.h.
#pragma once
#include <algorithm>
#include <cstring>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "client/client.h"
#include "client/ellm.h"

struct ellm_client {
  ellm::client::Client client;
};

struct ellm_request {
  std::string model, name_space, prompt, tools, variables;
  std::vector<uint32_t> tokens;
  bool use_tokens = false;
  std::vector<ellm::client::ChatMessage> messages;
  ellm::client::Sampling sampling;
  ellm::client::Priority priority = ellm::client::Priority::interactive;
  uint32_t deadline_ms = 0, n = 1;
};

struct ellm_reply {
  std::optional<std::string> text = {};
  std::vector<uint32_t> tokens = {};
  std::vector<std::string> pieces = {};
  std::vector<float> log_probs = {};
  std::vector<std::vector<ellm_token_logprob>> top = {};
  std::optional<ellm::client::Completion> completion = {};  // but for what stands above
  std::vector<ellm::client::ModelInfo> models = {};
  std::optional<ellm::client::StatusReply> status = {};
  std::optional<ellm::client::CacheReply> cache = {};
  std::vector<ellm_reply> others = {};  // samples behind the first
};

namespace ellm::client::c_abi {

/// What the library's own functions throw for ELLM_E_ARGUMENT.
struct BadArgument {
  const char* what;
};
inline void require(bool condition, const char* what) {
  if (!condition) throw BadArgument{what};
}

/// Notes the exception that is being handled as this thread's error; its code.
int note_failure() noexcept;

/// Runs the body of a function of ellm.h: 0, what it returns, or the code of what it throws.
template <class Body>
int guarded(Body&& body) noexcept {
  try {
    if constexpr (std::is_void_v<decltype(body())>) {
      body();
      return ELLM_OK;
    } else {
      return body();
    }
  } catch (...) {
    return note_failure();
  }
}

/// Runs `body(client)` and hands out the reply that it returns.
template <class Body>
int ask(ellm_client* client, ellm_reply** out, Body&& body) {
  return guarded([&] {
    require(client != nullptr, "the client is NULL");
    require(out != nullptr, "where to put the reply is NULL");
    *out = new ellm_reply(body(client->client));
  });
}

/// A caller's text; throws BadArgument.
inline std::string text_of(const char* text, size_t length) {
  require(text != nullptr || length == 0, "a text is NULL");
  return length == ELLM_ZERO_TERMINATED ? std::string(text) : std::string(text ? text : "", length);
}
inline std::string name_of(const char* name) { return name ? name : ""; }

/// Fills a caller's struct as far as it reaches, zeros where it reaches further than this library's.
template <class Info>
void copy_out(Info from, Info* to) {
  require(to != nullptr && to->struct_size >= sizeof(size_t), "struct_size is not set");
  from.struct_size = to->struct_size;
  const size_t known = std::min(sizeof from, from.struct_size);
  std::memcpy(to, &from, known);
  std::memset(reinterpret_cast<char*>(to) + known, 0, from.struct_size - known);
}

std::vector<ellm_token_logprob> convert(const std::vector<std::pair<uint32_t, float>>& top);
ellm_reply reply_of(Completion completion);

}  // namespace ellm::client::c_abi
