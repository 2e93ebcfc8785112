// Limits, allocation and argument binding of a render.
#include "daemon/format/jinja/runtime.h"

#include <algorithm>
#include <limits>

#include "daemon/format/jinja/builtins.h"
#include "daemon/format/jinja/print.h"
#include "daemon/format/jinja/text.h"

namespace ellm::format::jinja {

Runtime::~Runtime() = default;

void throw_template_error(const std::string& message, int line, bool raised) {
  // What a template says or quotes may be long, and cut within a character.
  constexpr size_t kLongest = 2000;
  std::string shown = message;
  if (shown.size() > kLongest) {
    shown.resize(kLongest);
    while (!shown.empty() && (static_cast<unsigned char>(shown.back()) & 0xC0) == 0x80) shown.pop_back();
    if (!shown.empty() && static_cast<unsigned char>(shown.back()) >= 0xC0) shown.pop_back();
    shown += "...";
  }
  if (!valid_utf8(shown)) {
    std::replace_if(shown.begin(), shown.end(), [](char c) { return static_cast<unsigned char>(c) >= 0x80; }, '?');
  }
  throw TemplateError("chat template, line " + std::to_string(line) + ": " + shown, line, raised);
}

void Runtime::fail(const std::string& message) const { throw_template_error(message, line_); }
void Runtime::raise(const std::string& message) const { throw_template_error(message, line_, true); }

void Runtime::fail_undefined(const Value& undefined) const {
  const std::string name = undefined.str() != nullptr ? undefined.str()->text : std::string();
  const TypeCode of = undefined.absent_of();
  const std::string owner = of == TypeCode::none ? "None" : std::string(type_name(of)) + " object";
  switch (undefined.absence()) {
    case Absence::variable: fail("'" + name + "' is undefined");
    case Absence::attribute: fail("'" + owner + "' has no attribute '" + name + "'");
    case Absence::element: fail(owner + " has no element " + name);
    case Absence::parameter: fail("parameter '" + name + "' was not provided");
    case Absence::hint: break;
  }
  fail(name);
}

void Runtime::fail_steps() const {
  fail("the template runs for too long (more than " + std::to_string(limits_.steps) + " steps)");
}

void Runtime::fail_levels() {
  // The level that failed is not entered, but its guard never lives to leave it.
  --levels_;
  fail("nested too deeply (more than " + std::to_string(limits_.depth) + " levels of calls, blocks or values)");
}

void Runtime::check_text(size_t bytes) const {
  if (bytes > limits_.output_bytes) {
    fail("text longer than the limit of " + std::to_string(limits_.output_bytes) + " bytes");
  }
}

void Runtime::check_text(size_t count, size_t each) const {
  if (each != 0 && count > std::numeric_limits<size_t>::max() / each) check_text(std::numeric_limits<size_t>::max());
  check_text(count * each);
}

void Runtime::check_memory(size_t bytes) const {
  if (bytes > limits_.memory_bytes - bytes_held_) {
    fail("the template's values take more than the limit of " + std::to_string(limits_.memory_bytes) + " bytes");
  }
}

void Runtime::keep_bytes(size_t bytes) {
  check_memory(bytes);
  bytes_held_ += bytes;
}

Value Runtime::text(std::string text, bool markup) {
  check_text(text.size());
  spend_text(text.size());
  auto str = std::make_unique<Str>();
  str->text = std::move(text);
  str->points = count_points(str->text);
  str->markup = markup;
  keep_bytes(str->text.capacity() + sizeof(Str));
  str->owner = this;
  return Value::string(str.release());
}

Value Runtime::seq(Shape shape, std::vector<Value> items) {
  spend(items.size() / 4);
  keep_bytes(items.capacity() * sizeof(Value));
  return Value::object(make<Seq>(shape, std::move(items)));
}

Value Runtime::undefined_hint(std::string message) {
  const Value held = text(std::move(message));
  return Value::undefined(Absence::hint, held.str());
}

void Runtime::bind(std::string_view function, std::string_view parameters, Arguments& arguments) const {
  if (parameters == "*") return;
  const std::string name(function);
  size_t count = 0;
  std::vector<Value>& out = arguments.positional;
  const size_t given = out.size();
  size_t named_used = 0;
  for (size_t at = 0; at < parameters.size(); ++count) {
    const size_t end = std::min(parameters.find(' ', at), parameters.size());
    std::string_view parameter = parameters.substr(at, end - at);
    at = end + 1;
    const bool optional = parameter.ends_with('?');
    if (optional) parameter.remove_suffix(1);
    if (count >= out.size()) out.emplace_back();
    for (auto& [key, value] : arguments.named) {
      if (key.text() != parameter) continue;
      if (count < given) fail(name + "() got multiple values for argument '" + std::string(parameter) + "'");
      out[count] = value;
      ++named_used;
    }
    if (!optional && out[count].is_missing()) {
      fail(name + "() is missing the argument '" + std::string(parameter) + "'");
    }
  }
  if (given > count) {
    fail(name + "() takes at most " + std::to_string(count) + " arguments (" + std::to_string(given) + " given)");
  }
  if (named_used != arguments.named.size()) {
    for (const auto& [key, value] : arguments.named) {
      if ((" " + std::string(parameters) + " ").find(" " + std::string(key.text())) == std::string::npos) {
        fail(name + "() got an unexpected keyword argument '" + std::string(key.text()) + "'");
      }
    }
    fail(name + "() got an unexpected keyword argument");
  }
}

Value Runtime::call_builtin(const Builtin& builtin, const Value& self, Arguments& arguments) {
  bind(builtin.name, builtin.parameters, arguments);
  return builtin.run(*this, self, arguments);
}

}  // namespace ellm::format::jinja
