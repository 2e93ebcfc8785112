// See batch_result.h.
#include "client/cli/batch_result.h"

#include <algorithm>
#include <ctime>

#include "client/cli/json.h"
#include "client/cli/output.h"

namespace ellm::cli {
namespace {

namespace json = boost::json;

json::object result(const LineName& line, json::value response, json::value error) {
  return {{"id", result_id(line.hash)},
          {"custom_id", line.custom_id.empty() ? json::value() : to_json(line.custom_id)},
          {"response", std::move(response)},
          {"error", std::move(error)}};
}

json::object response(const LineName& line, int status_code, json::object body) {
  return {{"status_code", status_code},
          {"request_id", format("req_%016jx", static_cast<uintmax_t>(line.hash))},
          {"body", std::move(body)}};
}

json::value message(const LineName& line, const std::exception& error) {
  return to_json("line " + std::to_string(line.number) + ": " + error.what());
}

json::object usage_json(const client::Usage& usage) {
  return {{"prompt_tokens", usage.prompt_tokens},
          {"completion_tokens", usage.completion_tokens},
          {"total_tokens", uint64_t{usage.prompt_tokens} + usage.completion_tokens},
          {"prompt_tokens_details", json::object{{"cached_tokens", usage.cached_tokens}}}};
}

/// A token may be half a character: `bytes` says what it is.
json::object token_json(const std::string& text, float logprob) {
  json::array bytes;
  for (char c : text) bytes.push_back(static_cast<unsigned char>(c));
  return {{"token", to_json(text)}, {"logprob", to_json(logprob)}, {"bytes", std::move(bytes)}};
}

json::object chat_logprobs(const client::Completion& completion, TokenTexts& texts) {
  json::array content;
  for (const client::TokenLogprob& token : completion.logprobs) {
    json::array top;
    for (auto [id, logprob] : token.top) top.push_back(token_json(texts.get(completion.model, id), logprob));
    json::object object = token_json(texts.get(completion.model, token.id), token.logprob);
    object.emplace("top_logprobs", std::move(top));
    content.push_back(std::move(object));
  }
  return {{"content", std::move(content)}};
}

json::object plain_logprobs(const client::Completion& completion, TokenTexts& texts) {
  json::array tokens, logprobs, tops;
  for (const client::TokenLogprob& token : completion.logprobs) {
    tokens.push_back(to_json(texts.get(completion.model, token.id)));
    logprobs.push_back(to_json(token.logprob));
    json::object top;
    for (auto [id, logprob] : token.top)
      top.emplace(client::to_utf8(texts.get(completion.model, id)), to_json(logprob));
    tops.push_back(std::move(top));
  }
  return {{"tokens", std::move(tokens)}, {"token_logprobs", std::move(logprobs)}, {"top_logprobs", std::move(tops)}};
}

json::object choice(const BatchRequest& request, const client::Completion& completion, TokenTexts& texts) {
  const bool chat = std::holds_alternative<client::Chat>(request);
  const bool logprobs = std::visit([](const auto& r) { return r.sampling.want_logprobs; }, request);
  json::object choice{{"index", completion.sample}};
  if (chat) choice.emplace("message", json::object{{"role", "assistant"}, {"content", to_json(completion.text)}});
  else choice.emplace("text", to_json(completion.text));
  if (!logprobs) choice.emplace("logprobs", nullptr);
  else choice.emplace("logprobs", chat ? chat_logprobs(completion, texts) : plain_logprobs(completion, texts));
  choice.emplace("finish_reason", client::name_of(completion.finish_reason));
  return choice;
}

int status_code(client::ErrorCode code) {
  using client::ErrorCode;
  switch (code) {
    case ErrorCode::bad_request:
    case ErrorCode::template_failed: return 400;
    case ErrorCode::no_such_model: return 404;
    case ErrorCode::too_large: return 413;
    default: return 500;
  }
}

}  // namespace

std::string result_id(uint64_t hash) { return format("batch_req_%016jx", static_cast<uintmax_t>(hash)); }

const std::string& TokenTexts::get(const std::string& model, uint32_t id) {
  auto [found, added] = texts_.try_emplace({model, id});
  if (!added) return found->second;
  try {
    // The first token of a text may lose a blank, so that a token's bytes are what a second one of it adds.
    const std::string one = client_.detokenize({0, model, {id}, true});
    found->second = client_.detokenize({0, model, {id, id}, true}).substr(one.size());
  } catch (...) {
    texts_.erase(found);
    throw;
  }
  return found->second;
}

std::string answer_line(const LineName& line, const BatchRequest& request, const client::Completion& completion,
                        TokenTexts& texts) {
  const bool chat = std::holds_alternative<client::Chat>(request);
  client::Usage usage = completion.usage;
  json::array choices{choice(request, completion, texts)};
  for (const client::Completion& other : completion.others) {
    choices.push_back(choice(request, other, texts));
    usage.completion_tokens += other.usage.completion_tokens;
  }
  json::object body{{"id", format("%s-%016jx", chat ? "chatcmpl" : "cmpl", static_cast<uintmax_t>(line.hash))},
                    {"object", chat ? "chat.completion" : "text_completion"},
                    {"created", static_cast<int64_t>(time(nullptr))},
                    {"model", to_json(completion.model)},
                    {"choices", std::move(choices)},
                    {"usage", usage_json(usage)}};
  return serialize(result(line, response(line, 200, std::move(body)), nullptr));
}

std::string refusal_line(const LineName& line, const client::ClientError& error) {
  const int status = status_code(error.code());
  json::object body{{"error", json::object{{"message", message(line, error)},
                                           {"type", status < 500 ? "invalid_request_error" : "server_error"},
                                           {"param", nullptr},
                                           {"code", client::name_of(error.code())}}}};
  return serialize(result(line, response(line, status, std::move(body)), nullptr));
}

std::string broken_line(const LineName& line, const LineError& error) {
  return serialize(result(
      line, nullptr, json::object{{"code", error.code()}, {"message", message(line, error)}, {"line", line.number}}));
}

}  // namespace ellm::cli
