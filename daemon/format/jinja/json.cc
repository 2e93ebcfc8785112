// tojson as transformers defines it: json.dumps with ensure_ascii, indent, separators and sort_keys, nothing
// HTML-escaped.
#include <algorithm>
#include <cmath>

#include "daemon/format/jinja/access.h"
#include "daemon/format/jinja/builtins.h"
#include "daemon/format/jinja/operators.h"
#include "daemon/format/jinja/print.h"
#include "daemon/format/jinja/text.h"

namespace ellm::format::jinja {

namespace {

class JsonWriter {
 public:
  JsonWriter(Runtime& rt, const Arguments& args) : rt_(rt) {
    ascii_ = args.has(0) && truth(args[0]);
    if (args.has(1) && !args[1].is_none()) {
      indented_ = true;
      if (args[1].is_string()) {
        indent_ = args[1].text();
      } else {
        const int64_t width = std::max<int64_t>(integer_argument(rt, "tojson", args[1]), 0);
        rt.check_text(static_cast<size_t>(width));
        indent_.assign(static_cast<size_t>(width), ' ');
      }
      comma_ = ",";
    }
    if (args.has(2) && !args[2].is_none()) {
      const std::vector<Value> separators = to_vector(rt, args[2]);
      if (separators.size() != 2) rt.fail("tojson: separators are a pair");
      comma_ = text_argument(rt, "tojson", separators[0]);
      colon_ = text_argument(rt, "tojson", separators[1]);
    }
    sorted_ = args.has(3) && truth(args[3]);
  }

  void write(const Value& v) {
    rt_.spend(1);
    rt_.check_text(out.size());
    switch (v.kind()) {
      case Kind::none: out += "null"; return;
      case Kind::boolean: out += v.as_integer() != 0 ? "true" : "false"; return;
      case Kind::integer: out += std::to_string(v.as_integer()); return;
      case Kind::real: out += real(v.as_real()); return;
      case Kind::string: string(v.text()); return;
      default: break;
    }
    const bool array = has_shape(v, Shape::list) || has_shape(v, Shape::tuple);
    if (!array && as_dict(v) == nullptr) {
      if (v.is_undefined())
        rt_.fail(std::string("tojson: Object of type Undefined is not JSON serializable") + reason(v));
      rt_.fail(std::string("tojson: Object of type ") + type_name(v) + " is not JSON serializable");
    }
    if (std::find(active_.begin(), active_.end(), v.object()) != active_.end())
      rt_.fail("tojson: circular reference detected");
    const Runtime::Level level(rt_);
    active_.push_back(v.object());
    if (array) {
      items(as_seq(v)->items);
    } else {
      object(*as_dict(v));
    }
    active_.pop_back();
  }

  std::string out;

 private:
  static std::string reason(const Value& undefined) {
    return undefined.str() != nullptr ? " ('" + undefined.str()->text + "' is undefined)" : std::string();
  }

  static std::string real(double value) {
    if (std::isnan(value)) return "NaN";
    if (std::isinf(value)) return value < 0 ? "-Infinity" : "Infinity";
    return repr_real(value);
  }

  void newline() {
    if (!indented_) return;
    rt_.check_text(active_.size(), indent_.size());
    out += '\n';
    for (size_t i = 0; i < active_.size(); ++i) out += indent_;
    rt_.check_text(out.size());
  }

  void close(char bracket, bool empty) {
    if (!empty && indented_) {
      out += '\n';
      for (size_t i = 0; i + 1 < active_.size(); ++i) out += indent_;
    }
    out += bracket;
  }

  void items(const std::vector<Value>& items) {
    out += '[';
    for (size_t i = 0; i < items.size(); ++i) {
      if (i != 0) out += comma_;
      newline();
      write(items[i]);
    }
    close(']', items.empty());
  }

  std::string key_of(const Value& key) {
    switch (key.kind()) {
      case Kind::none: return "null";
      case Kind::boolean: return key.as_integer() != 0 ? "true" : "false";
      case Kind::integer: return std::to_string(key.as_integer());
      case Kind::real: return real(key.as_real());
      case Kind::string: return key.str()->text;
      default: rt_.fail(std::string("tojson: keys must be str, int, float, bool or None, not ") + type_name(key));
    }
  }

  void object(const Dict& dict) {
    std::vector<std::pair<Value, Value>> entries = dict.entries();
    if (sorted_) {
      std::stable_sort(entries.begin(), entries.end(), [this](const auto& a, const auto& b) {
        rt_.spend(1);
        return compare(rt_, CompareOp::lt, a.first, b.first);
      });
    }
    out += '{';
    for (size_t i = 0; i < entries.size(); ++i) {
      if (i != 0) out += comma_;
      newline();
      string(key_of(entries[i].first));
      out += colon_;
      write(entries[i].second);
    }
    close('}', entries.empty());
  }

  void hex4(uint32_t unit) {
    static constexpr char kDigits[] = "0123456789abcdef";
    out += "\\u";
    for (int shift = 12; shift >= 0; shift -= 4) out += kDigits[(unit >> shift) & 15];
  }

  void string(std::string_view text) {
    rt_.spend_text(text.size());
    out += '"';
    for (size_t at = 0; at < text.size();) {
      const size_t begin = at;
      const char32_t c = next_point(text, at);
      static constexpr std::string_view kFrom = "\"\\\n\r\t\f\b";
      static constexpr std::string_view kTo = "\"\\nrtfb";
      const size_t simple = c < 0x80 ? kFrom.find(static_cast<char>(c)) : kFrom.npos;
      if (simple != kFrom.npos) {
        out += '\\';
        out += kTo[simple];
      } else if (c < 0x20 || (ascii_ && c > 0x7E && c < 0x10000)) {
        hex4(c);
      } else if (ascii_ && c >= 0x10000) {
        hex4(0xD800 + ((c - 0x10000) >> 10));
        hex4(0xDC00 + ((c - 0x10000) & 0x3FF));
      } else {
        out += text.substr(begin, at - begin);
      }
      if (out.size() > rt_.limits().output_bytes) rt_.check_text(out.size());
    }
    out += '"';
  }

  Runtime& rt_;
  bool ascii_ = false, indented_ = false, sorted_ = false;
  std::string indent_, comma_ = ", ", colon_ = ": ";
  std::vector<const Object*> active_;
};

Value to_json(Runtime& rt, const Value& v, Arguments& args) {
  JsonWriter writer(rt, args);
  writer.write(v);
  return rt.text(std::move(writer.out));
}

constexpr Builtin kFilters[] = {{"tojson", "ensure_ascii? indent? separators? sort_keys?", to_json}};

}  // namespace

BuiltinTable json_filters() { return kFilters; }

}  // namespace ellm::format::jinja
