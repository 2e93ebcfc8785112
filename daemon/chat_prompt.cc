// See chat_prompt.h.
#include "daemon/chat_prompt.h"

#include <sys/random.h>

#include <algorithm>
#include <boost/json.hpp>
#include <charconv>
#include <cstring>

namespace ellm::daemon {
namespace {

namespace json = boost::json;
using client::ErrorCode;

json::value parse_json(const std::string& text, const std::string& field) {
  boost::system::error_code error;
  json::parse_options options;
  options.max_depth = 64;
  json::value value = json::parse(text, error, {}, options);
  if (error) throw PromptError(ErrorCode::bad_request, field + ": invalid JSON: " + error.message());
  return value;
}

json::object parse_object(const std::string& text, const std::string& field) {
  if (text.empty()) return {};
  json::value value = parse_json(text, field);
  if (!value.is_object()) throw PromptError(ErrorCode::bad_request, field + ": expected a JSON object");
  return std::move(value.get_object());
}

void add_special_tokens(json::object& variables, const format::Tokenizer& tokenizer) {
  const auto text = [&](std::optional<format::TokenId> id) { return id ? tokenizer.piece(*id) : std::string_view(); };
  if (!variables.contains("bos_token")) variables["bos_token"] = text(tokenizer.bos());
  if (!variables.contains("eos_token")) variables["eos_token"] = text(tokenizer.eos());
}

const format::ChatTemplate& template_of(const std::string& name, const model::Model& model) {
  if (model.chat_template() != nullptr) return *model.chat_template();
  const std::string& error = model.chat_template_error();
  if (!error.empty()) throw PromptError(ErrorCode::template_failed, "model '" + name + "': " + error);
  throw PromptError(ErrorCode::template_failed,
                    "model '" + name + "' has no chat template; use a plain completion (ellm run --raw)");
}

std::string render(const std::string& name, const format::ChatTemplate& chat_template, const json::object& variables) {
  try {
    return chat_template.render(variables);
  } catch (const format::TemplateError& e) {
    throw PromptError(ErrorCode::template_failed, "model '" + name + "': " + e.what());
  }
}

json::object variables_of(const client::Chat& chat, const format::Tokenizer& tokenizer) {
  json::object variables = parse_object(chat.variables, "variables");
  json::array messages;
  for (size_t i = 0; i < chat.messages.size(); ++i) {
    const client::ChatMessage& message = chat.messages[i];
    json::object object;
    object["role"] = message.role;
    object["content"] = message.content;
    for (auto& [key, value] : parse_object(message.extra, "messages[" + std::to_string(i) + "].extra"))
      object[key] = value;
    messages.push_back(std::move(object));
  }
  variables["messages"] = std::move(messages);
  if (!chat.tools.empty()) {
    json::value tools = parse_json(chat.tools, "tools");
    if (!tools.is_array() && !tools.is_null())
      throw PromptError(ErrorCode::bad_request, "tools: expected a JSON array");
    variables["tools"] = std::move(tools);
  }
  if (!variables.contains("add_generation_prompt")) variables["add_generation_prompt"] = true;
  add_special_tokens(variables, tokenizer);
  return variables;
}

std::string text_of(const format::Tokenizer& tokenizer, std::span<const uint32_t> ids) {
  std::string text;
  for (uint32_t id : ids) text += tokenizer.piece(id);
  return text;
}

/// The messages whose own ids may stand in for their text, with that text.
struct Own {
  std::vector<size_t> messages;
  std::vector<std::string> texts;
};

Own own_messages(const client::Chat& chat, const json::object& variables, const format::Tokenizer& tokenizer) {
  Own own;
  const json::array& messages = variables.at("messages").as_array();
  for (size_t i = 0; i < chat.messages.size(); ++i) {
    const client::ChatMessage& message = chat.messages[i];
    if (message.token_ids.empty()) continue;
    const auto in_vocabulary = [&](uint32_t id) { return id < tokenizer.vocabulary_size(); };
    if (!std::all_of(message.token_ids.begin(), message.token_ids.end(), in_vocabulary)) continue;
    const json::value& content = messages[i].as_object().at("content");
    std::string text = text_of(tokenizer, message.token_ids);
    if (text.empty() || !content.is_string() || content.as_string() != text) continue;
    own.messages.push_back(i);
    own.texts.push_back(std::move(text));
  }
  return own;
}

/// What marks begin with: nobody can guess it, and no text of the chat contains it.
std::string new_mark(const json::object& variables) {
  const std::string whole = json::serialize(variables);
  for (;;) {
    unsigned char random[16];
    if (::getrandom(random, sizeof random, 0) != sizeof random) throw std::runtime_error("no random bytes");
    std::string mark = "ELLMOWNIDS";
    for (unsigned char byte : random) {
      mark += "0123456789abcdef"[byte >> 4];
      mark += "0123456789abcdef"[byte & 15];
    }
    mark += 'Z';  // the mark's number follows
    if (whole.find(mark) == std::string::npos) return mark;
  }
}

/// In linear time, whatever the texts; `work` grows by the bytes that were looked through.
size_t find_from(std::string_view text, size_t from, std::string_view wanted, size_t& work) {
  const void* at = ::memmem(text.data() + from, text.size() - from, wanted.data(), wanted.size());
  const size_t found =
      at == nullptr ? std::string::npos : static_cast<size_t>(static_cast<const char*>(at) - text.data());
  work += std::min(found, text.size()) - from;
  return found;
}

/// A tokenizer may put a space in front of a text, or normalise it. Beside the model's own ids neither is wanted: such
/// a piece gives no ids.
std::optional<std::vector<uint32_t>> encode_piece(const format::Tokenizer& tokenizer, std::string_view text,
                                                  bool at_start) {
  auto ids = tokenizer.encode(text, {.add_special = false, .parse_special = true});
  if (!at_start && text_of(tokenizer, ids) != text) return std::nullopt;
  return ids;
}

/// The rendered prompt in ids, with `own` ids at the places found; absent where the text around them does not allow it.
std::optional<std::vector<uint32_t>> splice(const format::Tokenizer& tokenizer, const std::string& rendered,
                                            const client::Chat& chat, const Own& own,
                                            const std::vector<std::optional<size_t>>& places) {
  std::vector<uint32_t> ids;
  size_t at = 0;
  for (size_t i = 0; i < places.size(); ++i) {
    if (!places[i]) continue;
    const auto before = encode_piece(tokenizer, std::string_view(rendered).substr(at, *places[i] - at), at == 0);
    if (!before) return std::nullopt;
    const auto& mine = chat.messages[own.messages[i]].token_ids;
    ids.insert(ids.end(), before->begin(), before->end());
    ids.insert(ids.end(), mine.begin(), mine.end());
    at = *places[i] + own.texts[i].size();
  }
  const auto rest = encode_piece(tokenizer, std::string_view(rendered).substr(at), at == 0);
  if (!rest) return std::nullopt;
  ids.insert(ids.end(), rest->begin(), rest->end());
  return ids;
}

std::string_view without_space_around(std::string_view text) {
  constexpr std::string_view kSpace = " \t\r\n";
  const size_t begin = text.find_first_not_of(kSpace);
  return begin == std::string_view::npos ? "" : text.substr(begin, text.find_last_not_of(kSpace) - begin + 1);
}

/// How many of the ids make up the rendered text up to the end of the last message whose own ids were not used.
/// (Templates like to trim what they print.) 0 where there is none, or where the text is not to be found.
uint32_t retokenised_until(const format::Tokenizer& tokenizer, const std::string& rendered, const client::Chat& chat,
                           const std::vector<bool>& used, std::span<const uint32_t> ids) {
  for (size_t m = chat.messages.size(); m-- > 0;) {
    const auto text = without_space_around(chat.messages[m].content);
    const auto& own = chat.messages[m].token_ids;
    if (own.empty() || used[m] || text.empty()) continue;
    const size_t found = rendered.rfind(text);
    if (found == std::string::npos) return 0;
    size_t at = 0, count = 0;
    while (count < ids.size() && at < found + text.size()) at += tokenizer.piece(ids[count++]).size();
    const auto there = ids.first(count).last(std::min(own.size(), count));
    if (std::ranges::equal(there, own) && text_of(tokenizer, own) == chat.messages[m].content)
      continue;  // the same anew
    return static_cast<uint32_t>(count);
  }
  return 0;
}

}  // namespace

void refuse_fault(const std::optional<std::string>& fault) {
  if (fault) throw PromptError(client::ErrorCode::bad_request, *fault);
}

std::vector<std::optional<size_t>> locate(const std::string& rendered, const std::string& marked, const Mark& mark,
                                          std::span<const std::string> texts, size_t* searched) {
  size_t ignored = 0;
  size_t& work = searched == nullptr ? ignored : *searched;
  std::vector<std::optional<size_t>> places(texts.size());
  // The surroundings: what stands before each mark, and after the last one.
  std::vector<std::pair<size_t, std::string_view>> before;  // mark number, text in front of it
  size_t at = 0;
  for (;;) {
    const size_t found = find_from(marked, at, mark.begin, work);
    if (found == std::string::npos) break;
    const char* const end = marked.data() + marked.size();
    size_t number = 0;
    const auto [after, error] = std::from_chars(marked.data() + found + mark.begin.size(), end, number);
    if (error != std::errc() || number >= texts.size()) return places;
    if (!std::string_view(after, end).starts_with(mark.end)) return places;
    if (!before.empty() && number <= before.back().first) return places;  // out of order, or twice
    before.emplace_back(number, std::string_view(marked).substr(at, found - at));
    at = static_cast<size_t>(after - marked.data()) + mark.end.size();
  }
  const std::string_view tail = std::string_view(marked).substr(at);
  if (rendered.size() < tail.size() || !std::string_view(rendered).ends_with(tail)) return places;
  const size_t end = rendered.size() - tail.size();
  std::vector<std::optional<size_t>> found(texts.size());
  size_t here = 0;
  bool lost = false;  // the last place held another text
  for (const auto& [number, text] : before) {
    if (lost) {
      here = text.empty() ? std::string::npos : find_from(rendered, here, text, work);
      if (here == std::string::npos) return places;
    } else if (rendered.compare(here, text.size(), text) != 0) {
      return places;
    }
    here += text.size();
    lost = rendered.compare(here, texts[number].size(), texts[number]) != 0;
    if (lost) continue;
    found[number] = here;
    here += texts[number].size();
  }
  if (lost ? here > end : here != end) return places;
  return found;
}

Prompt chat_prompt(const std::string& model_name, const model::Model& model, const client::Chat& chat) {
  if (chat.messages.empty()) throw PromptError(ErrorCode::bad_request, "messages: there are none");
  const format::ChatTemplate& chat_template = template_of(model_name, model);
  const format::Tokenizer& tokenizer = *model.tokenizer();
  json::object variables = variables_of(chat, tokenizer);
  const std::string rendered = render(model_name, chat_template, variables);

  std::optional<std::vector<uint32_t>> ids;
  const Own own = own_messages(chat, variables, tokenizer);
  std::vector<bool> used(chat.messages.size());
  if (!own.messages.empty()) {
    json::array& messages = variables["messages"].as_array();
    const Mark mark{new_mark(variables), "X"};
    for (size_t i = 0; i < own.messages.size(); ++i)
      messages[own.messages[i]].as_object()["content"] = mark.begin + std::to_string(i) + mark.end;
    try {
      const auto places = locate(rendered, chat_template.render(variables), mark, own.texts);
      ids = splice(tokenizer, rendered, chat, own, places);
      for (size_t i = 0; ids && i < places.size(); ++i) used[own.messages[i]] = places[i].has_value();
    } catch (const format::TemplateError&) {
      // The template looks into the text: it is tokenized like any other.
    }
  }
  if (!ids) ids = tokenizer.encode(rendered, {.add_special = false, .parse_special = true});
  Prompt prompt{std::move(*ids), 0};
  prompt.retokenised_until = retokenised_until(tokenizer, rendered, chat, used, prompt.tokens);
  // A template that prints no BOS leaves it to the tokenizer.
  if (tokenizer.adds_bos() && tokenizer.bos() && (prompt.tokens.empty() || prompt.tokens.front() != *tokenizer.bos())) {
    prompt.tokens.insert(prompt.tokens.begin(), *tokenizer.bos());
    if (prompt.retokenised_until != 0) ++prompt.retokenised_until;
  }
  return prompt;
}

std::string render_template(const std::string& model_name, const model::Model& model, const std::string& variables) {
  const format::ChatTemplate& chat_template = template_of(model_name, model);
  json::object object = parse_object(variables, "variables");
  add_special_tokens(object, *model.tokenizer());
  return render(model_name, chat_template, object);
}

std::vector<uint32_t> text_prompt(const model::Model& model, const std::string& text) {
  return model.tokenizer()->encode(text);
}

}  // namespace ellm::daemon
