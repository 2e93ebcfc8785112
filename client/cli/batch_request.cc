// Members have OpenAI's names, and vLLM's where OpenAI has none (top_k, min_p, repetition_penalty, ignore_eos,
// chat_template_kwargs). One that changes the answer and that we cannot honour is an error, as is an unknown one; null
// is the same as absent. Ranges are the daemon's to check.
#include "client/cli/batch_request.h"

#include <algorithm>
#include <boost/json/parser.hpp>
#include <charconv>
#include <tuple>
#include <vector>

#include "client/cli/json.h"
#include "client/cli/output.h"

namespace ellm::cli {
namespace {

namespace json = boost::json;

constexpr size_t kDepth = 64;  // the daemon's

[[noreturn]] void invalid(const std::string& message) { throw LineError("invalid_request", message); }

std::string excerpt(const json::value& value) {
  std::string text = serialize(value);
  return text.size() <= 60 ? text : client::to_utf8(text.substr(0, 60)) + "…";
}

/// An object's members, each asked for by its name; what nobody has asked for is unknown.
class Members {
 public:
  Members(const json::value& value, std::string where) : where_(std::move(where)) {
    if (!value.is_object()) invalid(where_ + " must be an object, is " + excerpt(value));
    object_ = &value.get_object();
  }

  const json::value* find(std::string_view name) {
    asked_.push_back(name);
    const json::value* value = object_->if_contains(name);
    return value && !value->is_null() ? value : nullptr;
  }
  [[noreturn]] void wrong(std::string_view name, const char* expected) const {
    invalid(where_ + "." + std::string(name) + " must be " + expected + ", is " + excerpt(object_->at(name)));
  }

  void read(std::string_view name, std::string& to) {
    const json::value* value = find(name);
    if (value && !value->is_string()) wrong(name, "a string");
    if (value) to = value->get_string();
  }
  void read(std::string_view name, bool& to) {
    const json::value* value = find(name);
    if (value && !value->is_bool()) wrong(name, "true or false");
    if (value) to = value->get_bool();
  }
  void read(std::string_view name, float& to) {
    const json::value* value = find(name);
    if (value && !value->is_number()) wrong(name, "a number");
    if (value) to = static_cast<float>(value->to_number<double>());
  }
  void read(std::string_view name, uint32_t& to) {
    const json::value* value = find(name);
    if (!value) return;
    json::error_code error;
    if (value->is_number()) to = value->to_number<uint32_t>(error);
    if (error || !value->is_number()) wrong(name, "a whole number from 0 to 4294967295");
  }

  /// The member may be there where it asks for what happens anyway.
  void only(std::string_view name, const json::value& allowed) {
    const json::value* value = find(name);
    if (value && *value != allowed)
      wrong(name, ("absent or " + serialize(allowed) + " (nothing else is supported)").c_str());
  }
  void ignore(std::initializer_list<std::string_view> names) { asked_.insert(asked_.end(), names); }

  void refuse_unknown() const {
    std::string unknown;
    for (const auto& member : *object_)
      if (std::find(asked_.begin(), asked_.end(), std::string_view(member.key())) == asked_.end())
        unknown += (unknown.empty() ? "" : ", ") + quoted(member.key());
    if (!unknown.empty()) throw LineError("unknown_member", where_ + " has members that are not known: " + unknown);
  }

  const json::object& object() const { return *object_; }

 private:
  const json::object* object_;
  std::string where_;
  std::vector<std::string_view> asked_;
};

void read_stop(Members& body, std::vector<std::string>& stop) {
  const json::value* value = body.find("stop");
  if (!value) return;
  if (value->is_string()) return stop.emplace_back(value->get_string()), void();
  if (!value->is_array()) body.wrong("stop", "a string or a list of strings");
  for (const json::value& each : value->get_array()) {
    if (!each.is_string()) body.wrong("stop", "a string or a list of strings");
    stop.emplace_back(each.get_string());
  }
}

/// {"50256": -100}
void read_logit_bias(Members& body, client::Sampling& sampling) {
  const json::value* value = body.find("logit_bias");
  if (!value) return;
  if (!value->is_object()) body.wrong("logit_bias", "an object of token ids and numbers");
  for (const auto& member : value->get_object()) {
    uint32_t id = 0;
    const char *begin = member.key().data(), *end = begin + member.key().size();
    auto parsed = std::from_chars(begin, end, id);
    if (parsed.ec != std::errc() || parsed.ptr != end || !member.value().is_number())
      body.wrong("logit_bias", "an object of token ids and numbers");
    sampling.logit_bias.emplace_back(id, static_cast<float>(member.value().to_number<double>()));
  }
}

void read_length(Members& body, uint32_t& max_tokens) {
  for (const char* name : {"max_tokens", "max_completion_tokens"}) {  // the second is the newer name
    if (!body.find(name)) continue;
    uint32_t value = 0;
    body.read(name, value);
    if (value == 0) body.wrong(name, "at least 1");
    max_tokens = value;
  }
}

/// A signed number, as OpenAI's are, or an unsigned one.
void read_seed(Members& body, uint64_t& seed) {
  const json::value* value = body.find("seed");
  if (!value) return;
  if (value->is_uint64()) seed = value->get_uint64();
  else if (value->is_int64()) seed = static_cast<uint64_t>(value->get_int64());
  else body.wrong("seed", "a whole number of 64 bits");
}

client::Sampling read_sampling(Members& body) {
  client::Sampling sampling;
  body.read("temperature", sampling.temperature);
  body.read("top_k", sampling.top_k);
  body.read("top_p", sampling.top_p);
  body.read("min_p", sampling.min_p);
  body.read("repetition_penalty", sampling.repetition_penalty);
  body.read("presence_penalty", sampling.presence_penalty);
  body.read("frequency_penalty", sampling.frequency_penalty);
  body.read("ignore_eos", sampling.ignore_eos);
  read_seed(body, sampling.seed);
  read_length(body, sampling.max_tokens);
  read_stop(body, sampling.stop);
  read_logit_bias(body, sampling);
  body.only("stream", false);
  body.ignore({"user", "metadata", "store", "service_tier", "safety_identifier", "prompt_cache_key"});
  return sampling;
}

void read_samples(Members& body, uint32_t& n) {
  body.read("n", n);
  if (n == 0) body.wrong("n", "at least 1");
}

/// A string, or parts of type text.
std::string read_content(Members& message, const std::string& where) {
  const json::value* content = message.find("content");
  if (!content) return "";  // of an assistant that calls tools
  if (content->is_string()) return std::string(content->get_string());
  if (!content->is_array()) message.wrong("content", "a string or a list of parts");
  std::string text;
  for (const json::value& each : content->get_array()) {
    Members part(each, where + ".content[]");
    std::string type, piece;
    part.read("type", type);
    if (type != "text") invalid(where + ".content has a part of type " + quoted(type) + ": only text is supported");
    part.read("text", piece);
    part.refuse_unknown();
    text += piece;
  }
  return text;
}

std::vector<client::ChatMessage> read_messages(Members& body) {
  const json::value* value = body.find("messages");
  if (!value) invalid("body has no messages");
  if (!value->is_array()) body.wrong("messages", "a list");
  std::vector<client::ChatMessage> messages;
  for (const json::value& each : value->get_array()) {
    const std::string where = "body.messages[" + std::to_string(messages.size()) + "]";
    Members message(each, where);
    client::ChatMessage& to = messages.emplace_back();
    message.read("role", to.role);
    if (to.role.empty()) invalid(where + " has no role");
    to.content = read_content(message, where);
    json::object extra;  // name, tool_calls, tool_call_id …: the template's to use
    for (const auto& member : message.object())
      if (member.key() != "role" && member.key() != "content") extra.emplace(member.key(), member.value());
    if (!extra.empty()) to.extra = serialize(extra);
  }
  return messages;
}

client::Chat read_chat(Members& body) {
  client::Chat chat;
  chat.messages = read_messages(body);
  chat.sampling = read_sampling(body);
  read_samples(body, chat.n);
  body.read("logprobs", chat.sampling.want_logprobs);
  body.read("top_logprobs", chat.sampling.logprobs);
  if (chat.sampling.logprobs > 0 && !chat.sampling.want_logprobs) invalid("body.top_logprobs needs logprobs: true");
  std::string choice = "auto";
  body.read("tool_choice", choice);
  if (choice != "auto" && choice != "none") body.wrong("tool_choice", "auto or none (nothing else is supported)");
  if (const json::value* tools = body.find("tools")) {
    if (!tools->is_array()) body.wrong("tools", "a list");
    if (choice == "auto") chat.tools = serialize(*tools);
  }
  if (const json::value* variables = body.find("chat_template_kwargs")) {
    if (!variables->is_object()) body.wrong("chat_template_kwargs", "an object");
    chat.variables = serialize(*variables);
  }
  body.only("response_format", json::object{{"type", "text"}});
  return chat;
}

client::Generate read_plain(Members& body) {
  client::Generate plain;
  const json::value* prompt = body.find("prompt");
  if (!prompt) invalid("body has no prompt");
  if (prompt->is_array() && prompt->get_array().size() == 1 && !prompt->get_array()[0].is_number())
    prompt = &prompt->get_array()[0];  // a list of one prompt
  if (prompt->is_string()) {
    plain.prompt = prompt->get_string();
  } else if (prompt->is_array()) {
    plain.use_tokens = true;
    for (const json::value& id : prompt->get_array()) {
      json::error_code error;
      if (id.is_number()) plain.tokens.push_back(id.to_number<uint32_t>(error));
      if (error || !id.is_number()) body.wrong("prompt", "one string or one list of token ids (a line has one prompt)");
    }
  } else {
    body.wrong("prompt", "one string or one list of token ids (a line has one prompt)");
  }
  plain.sampling = read_sampling(body);
  read_samples(body, plain.n);
  plain.sampling.want_logprobs = body.find("logprobs") != nullptr;
  body.read("logprobs", plain.sampling.logprobs);
  body.only("best_of", plain.n);
  body.only("echo", false);
  body.only("suffix", "");
  return plain;
}

}  // namespace

std::string quoted(std::string_view text) {
  constexpr size_t kShown = 80;
  return "'" + client::to_utf8(text.substr(0, kShown)) + (text.size() > kShown ? "…'" : "'");
}

json::value parse_line(std::string_view text) {
  json::error_code error;
  json::parser parser({}, {.max_depth = kDepth});
  size_t used = parser.write_some(text.data(), text.size(), error);
  if (!error && text.find_first_not_of(" \t\r\n", used) != text.npos) error = json::error::extra_data;
  if (error) throw LineError("invalid_json", "is not JSON: " + error.message() + format(", byte %zu", used + 1));
  return parser.release();
}

std::string custom_id_of(const json::value& line) {
  const json::object* object = line.if_object();
  const json::value* id = object ? object->if_contains("custom_id") : nullptr;
  return id && id->is_string() ? std::string(id->get_string()) : "";
}

BatchRequest parse_request(const json::value& value, const std::string& model) {
  Members line(value, "the line");
  std::string method = "POST", url, id;
  line.read("custom_id", id);
  if (id.empty()) invalid("there is no custom_id");
  line.read("method", method);
  if (method != "POST") invalid("method is " + quoted(method) + ": only POST is supported");
  line.read("url", url);
  const json::value* given = line.find("body");
  if (!given) invalid("there is no body");
  line.refuse_unknown();
  Members body(*given, "body");
  if (url.empty()) url = body.object().contains("prompt") ? "/v1/completions" : "/v1/chat/completions";
  BatchRequest request;
  if (url == "/v1/chat/completions") request = read_chat(body);
  else if (url == "/v1/completions") request = read_plain(body);
  else invalid("url is " + quoted(url) + ": only /v1/chat/completions and /v1/completions are supported");
  std::string name = model;
  body.read("model", name);
  body.refuse_unknown();
  std::visit([&](auto& r) { r.model = name; }, request);
  return request;
}

bool begins_before(const BatchRequest& a, const BatchRequest& b) {
  if (a.index() != b.index()) return a.index() < b.index();
  if (const auto* plain = std::get_if<client::Generate>(&a)) {
    const auto& other = std::get<client::Generate>(b);
    return std::tie(plain->model, plain->tokens, plain->prompt) < std::tie(other.model, other.tokens, other.prompt);
  }
  const auto &x = std::get<client::Chat>(a), &y = std::get<client::Chat>(b);
  auto head = [](const client::Chat& chat) { return std::tie(chat.model, chat.tools, chat.variables); };
  if (head(x) != head(y)) return head(x) < head(y);
  return std::lexicographical_compare(
      x.messages.begin(), x.messages.end(), y.messages.begin(), y.messages.end(), [](const auto& m, const auto& n) {
        return std::tie(m.role, m.content, m.extra) < std::tie(n.role, n.content, n.extra);
      });
}

}  // namespace ellm::cli
