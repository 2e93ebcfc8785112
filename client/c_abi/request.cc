// ellm.h: requests are filled in.
#include "client/c_abi/handles.h"

using namespace ellm::client::c_abi;

namespace {

std::string& text_option(ellm_request& request, int option) {
  switch (option) {
    case ELLM_MODEL: return request.model;
    case ELLM_PROMPT: return request.prompt;
    case ELLM_TOOLS: return request.tools;
    case ELLM_VARIABLES: return request.variables;
    case ELLM_NAMESPACE: return request.name_space;
  }
  throw BadArgument{"no such text option"};
}

float& number_option(ellm::client::Sampling& sampling, int option) {
  switch (option) {
    case ELLM_TEMPERATURE: return sampling.temperature;
    case ELLM_TOP_P: return sampling.top_p;
    case ELLM_MIN_P: return sampling.min_p;
    case ELLM_REPETITION_PENALTY: return sampling.repetition_penalty;
    case ELLM_PRESENCE_PENALTY: return sampling.presence_penalty;
    case ELLM_FREQUENCY_PENALTY: return sampling.frequency_penalty;
  }
  throw BadArgument{"no such number option"};
}

ellm::client::Priority priority_of(uint64_t value) {
  require(value == ELLM_INTERACTIVE || value == ELLM_BATCH, "no such priority");
  return value == ELLM_BATCH ? ellm::client::Priority::batch : ellm::client::Priority::interactive;
}

uint32_t narrow(uint64_t value) {
  require(value <= UINT32_MAX, "the value of an integer option is too large");
  return static_cast<uint32_t>(value);
}

void set_integer(ellm_request& request, int option, uint64_t value) {
  ellm::client::Sampling& sampling = request.sampling;
  switch (option) {
    case ELLM_SEED: sampling.seed = value; return;
    case ELLM_MAX_TOKENS: sampling.max_tokens = narrow(value); return;
    case ELLM_TOP_K: sampling.top_k = narrow(value); return;
    case ELLM_LOGPROBS: sampling.logprobs = narrow(value), sampling.want_logprobs = true; return;
    case ELLM_IGNORE_EOS: sampling.ignore_eos = value != 0; return;
    case ELLM_SAMPLES: request.n = narrow(value); return;
    case ELLM_DEADLINE_MS: request.deadline_ms = narrow(value); return;
    case ELLM_PRIORITY: request.priority = priority_of(value); return;
  }
  throw BadArgument{"no such integer option"};
}

template <class Change>
int change(ellm_request* request, Change&& body) {
  return guarded([&] {
    require(request != nullptr, "the request is NULL");
    body(*request);
  });
}

}  // namespace

int ellm_request_new(ellm_request** request) {
  return guarded([&] {
    require(request != nullptr, "where to put the request is NULL");
    *request = new ellm_request();
  });
}

void ellm_request_free(ellm_request* request) { delete request; }

int ellm_request_set_text(ellm_request* request, int option, const char* text, size_t length) {
  return change(request, [&](ellm_request& r) {
    text_option(r, option) = text_of(text, length);
    if (option == ELLM_PROMPT) r.use_tokens = false;
  });
}

int ellm_request_set_number(ellm_request* request, int option, double value) {
  return change(request, [&](ellm_request& r) { number_option(r.sampling, option) = static_cast<float>(value); });
}

int ellm_request_set_integer(ellm_request* request, int option, uint64_t value) {
  return change(request, [&](ellm_request& r) { set_integer(r, option, value); });
}

int ellm_request_set_tokens(ellm_request* request, const uint32_t* tokens, size_t count) {
  return change(request, [&](ellm_request& r) {
    require(tokens != nullptr || count == 0, "the tokens are NULL");
    r.tokens.assign(tokens, tokens + count);
    r.use_tokens = true;
  });
}

int ellm_request_add_stop(ellm_request* request, const char* text, size_t length) {
  return change(request, [&](ellm_request& r) { r.sampling.stop.push_back(text_of(text, length)); });
}

int ellm_request_add_logit_bias(ellm_request* request, uint32_t token, float value) {
  return change(request, [&](ellm_request& r) { r.sampling.logit_bias.emplace_back(token, value); });
}

int ellm_request_add_message(ellm_request* request, const char* role, const char* content, size_t length) {
  return change(request, [&](ellm_request& r) {
    require(role != nullptr, "the role is NULL");
    r.messages.push_back({role, text_of(content, length), {}, ""});
  });
}

int ellm_request_set_message_extra(ellm_request* request, const char* json, size_t length) {
  return change(request, [&](ellm_request& r) {
    require(!r.messages.empty(), "there is no message yet");
    r.messages.back().extra = text_of(json, length);
  });
}

int ellm_request_add_answer(ellm_request* request, const ellm_reply* answer) {
  return change(request, [&](ellm_request& r) {
    require(answer != nullptr && answer->completion, "the reply is no answer of a model");
    r.messages.push_back({"assistant", *answer->text, answer->tokens, ""});
  });
}
