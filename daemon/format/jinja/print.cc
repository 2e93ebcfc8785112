// Printing of values. Cycles print as [...] and {...}; depth and length are bounded by the render.
#include "daemon/format/jinja/print.h"

#include <algorithm>
#include <array>
#include <charconv>
#include <cmath>

#include "daemon/format/jinja/builtins.h"
#include "daemon/format/jinja/interpreter.h"
#include "daemon/format/jinja/text.h"

namespace ellm::format::jinja {

namespace {

class Printer {
 public:
  Printer(Runtime& rt, std::string& out) : rt_(rt), out_(out) {}

  void repr(const Value& v) {
    rt_.spend(1);
    rt_.check_text(out_.size());
    switch (v.kind()) {
      case Kind::missing: break;
      case Kind::undefined: out_ += "Undefined"; break;
      case Kind::none: out_ += "None"; break;
      case Kind::boolean: out_ += v.as_integer() != 0 ? "True" : "False"; break;
      case Kind::integer: out_ += std::to_string(v.as_integer()); break;
      case Kind::real: out_ += repr_real(v.as_real()); break;
      case Kind::string:
        if (v.str()->markup) out_ += "Markup(";
        quoted(v.text());
        if (v.str()->markup) out_ += ')';
        break;
      case Kind::object: object(*v.object()); break;
    }
  }

 private:
  void object(const Object& object) {
    if (std::find(active_.begin(), active_.end(), &object) != active_.end()) {
      out_ += object.shape == Shape::dict ? "{...}" : object.shape == Shape::tuple ? "(...)" : "[...]";
      return;
    }
    const Runtime::Level level(rt_);
    active_.push_back(&object);
    if (object.shape <= Shape::range) {
      sequence(static_cast<const Seq&>(object));
    } else {
      other(object);
    }
    active_.pop_back();
  }

  void items(const std::vector<Value>& items) {
    for (size_t i = 0; i < items.size(); ++i) {
      if (i != 0) out_ += ", ";
      repr(items[i]);
    }
  }

  void sequence(const Seq& seq) {
    switch (seq.shape) {
      case Shape::tuple:
        out_ += '(';
        items(seq.items);
        out_ += seq.items.size() == 1 ? ",)" : ")";
        break;
      case Shape::generator: out_ += "<generator>"; break;
      case Shape::range: {
        const auto& range = static_cast<const Range&>(seq);
        out_ += "range(" + std::to_string(range.start) + ", " + std::to_string(range.stop);
        if (range.step != 1) out_ += ", " + std::to_string(range.step);
        out_ += ')';
        break;
      }
      default:
        if (seq.shape != Shape::list) out_ += std::string(type_name(Value::object(const_cast<Seq*>(&seq)))) + "(";
        out_ += '[';
        items(seq.items);
        out_ += seq.shape != Shape::list ? "])" : "]";
    }
  }

  void dict(const Dict& dict) {
    out_ += '{';
    bool first = true;
    for (const auto& [key, value] : dict.entries()) {
      if (!first) out_ += ", ";
      first = false;
      repr(key);
      out_ += ": ";
      repr(value);
    }
    out_ += '}';
  }

  void other(const Object& object) {
    switch (object.shape) {
      case Shape::dict: dict(static_cast<const Dict&>(object)); break;
      case Shape::space:
        out_ += "<Namespace ";
        dict(static_cast<const Dict&>(object));
        out_ += '>';
        break;
      case Shape::function:
      case Shape::method:
        out_ += object.shape == Shape::function ? "<function " : "<built-in method ";
        out_ += static_cast<const Function&>(object).builtin->name;
        out_ += '>';
        break;
      case Shape::macro: {
        const std::string_view name = macro_name(object);
        out_ += "<Macro ";
        if (name.empty()) {
          out_ += "anonymous";
        } else {
          quoted(name);
        }
        out_ += '>';
        break;
      }
      case Shape::loop: {
        auto& loop = const_cast<Loop&>(static_cast<const Loop&>(object));
        out_ += "<LoopContext " + std::to_string(loop.index0() + 1) + "/" + std::to_string(loop.length(rt_)) + ">";
        break;
      }
      case Shape::cycler: out_ += "<Cycler>"; break;
      default: out_ += "<Joiner>"; break;
    }
  }

  void quoted(std::string_view text) {
    rt_.spend_text(text.size());
    const char quote = text.find('\'') != text.npos && text.find('"') == text.npos ? '"' : '\'';
    out_ += quote;
    for (size_t at = 0; at < text.size();) {
      const char32_t c = next_point(text, at);
      if (c == static_cast<char32_t>(quote) || c == '\\') {
        out_ += '\\';
        out_ += static_cast<char>(c);
      } else if (c == '\n') {
        out_ += "\\n";
      } else if (c == '\r') {
        out_ += "\\r";
      } else if (c == '\t') {
        out_ += "\\t";
      } else if (c < 0x7F ? c >= 0x20 : is_printable(c)) {
        append_point(out_, c);
      } else {
        escape(c);
      }
    }
    out_ += quote;
  }

  void escape(char32_t c) {
    static constexpr char kDigits[] = "0123456789abcdef";
    const int digits = c < 0x100 ? 2 : c < 0x10000 ? 4 : 8;
    out_ += digits == 2 ? "\\x" : digits == 4 ? "\\u" : "\\U";
    for (int shift = 4 * (digits - 1); shift >= 0; shift -= 4) out_ += kDigits[(c >> shift) & 15];
  }

  Runtime& rt_;
  std::string& out_;
  std::vector<const Object*> active_;
};

}  // namespace

std::string repr_real(double value) {
  if (std::isnan(value)) return "nan";
  if (std::isinf(value)) return value < 0 ? "-inf" : "inf";
  std::array<char, 40> buffer;
  const auto end =
      std::to_chars(buffer.data(), buffer.data() + buffer.size(), value, std::chars_format::scientific).ptr;
  const std::string_view text(buffer.data(), static_cast<size_t>(end - buffer.data()));
  const size_t e = text.find('e');
  const int exponent = std::stoi(std::string(text.substr(e + 1)));
  std::string digits;  // without sign and point
  for (const char c : text.substr(0, e)) {
    if (c != '-' && c != '.') digits += c;
  }
  std::string out = std::signbit(value) ? "-" : "";
  const int count = static_cast<int>(digits.size());
  if (exponent < -4 || exponent >= 16) {
    out += digits.substr(0, 1);
    if (count > 1) out += "." + digits.substr(1);
    const std::string power = std::to_string(std::abs(exponent));
    return out + (exponent < 0 ? "e-" : "e+") + (power.size() < 2 ? "0" : "") + power;
  }
  if (exponent < 0) return out + "0." + std::string(static_cast<size_t>(-exponent - 1), '0') + digits;
  if (count <= exponent + 1) return out + digits + std::string(static_cast<size_t>(exponent + 1 - count), '0') + ".0";
  return out + digits.substr(0, static_cast<size_t>(exponent) + 1) + "." +
         digits.substr(static_cast<size_t>(exponent) + 1);
}

void append_repr(Runtime& rt, std::string& out, const Value& v) {
  Printer(rt, out).repr(v);
  rt.check_text(out.size());
}

void append_str(Runtime& rt, std::string& out, const Value& v) {
  if (v.is_string()) {
    rt.spend_text(v.text().size());
    rt.check_text(out.size() + v.text().size());
    out += v.text();
  } else if (!v.is_undefined()) {
    append_repr(rt, out, v);
  }
}

std::string str_of(Runtime& rt, const Value& v) {
  std::string out;
  append_str(rt, out, v);
  return out;
}

std::string repr_of(Runtime& rt, const Value& v) {
  std::string out;
  append_repr(rt, out, v);
  return out;
}

Value to_text(Runtime& rt, const Value& v) { return v.is_string() ? v : rt.text(str_of(rt, v)); }

std::string escape_html(Runtime& rt, std::string_view text) {
  const auto special = [](char c) { return c == '&' || c == '<' || c == '>' || c == '"' || c == '\''; };
  rt.check_text(text.size() + 4 * static_cast<size_t>(std::count_if(text.begin(), text.end(), special)));
  std::string out;
  for (const char c : text) {
    switch (c) {
      case '&': out += "&amp;"; break;
      case '<': out += "&lt;"; break;
      case '>': out += "&gt;"; break;
      case '"': out += "&#34;"; break;
      case '\'': out += "&#39;"; break;
      default: out += c;
    }
  }
  return out;
}

}  // namespace ellm::format::jinja
