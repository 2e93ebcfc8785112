// The global functions of a template.
#include <clocale>
#include <vector>

#include "daemon/format/jinja/access.h"
#include "daemon/format/jinja/builtins.h"
#include "daemon/format/jinja/operators.h"
#include "daemon/format/jinja/print.h"
#include "daemon/format/jinja/text.h"

namespace ellm::format::jinja {

namespace {

constexpr int64_t kMaxRange = 100'000;  // as in Jinja's sandbox

Value range(Runtime& rt, const Value&, Arguments& args) {
  const int64_t a = integer_argument(rt, "range", args[0]);
  const bool two = args.has(1);
  const int64_t start = two ? a : 0;
  const int64_t stop = two ? integer_argument(rt, "range", args[1]) : a;
  const int64_t step = args.has(2) ? integer_argument(rt, "range", args[2]) : 1;
  if (step == 0) rt.fail("range() arg 3 must not be zero");
  // In 128 bits nothing overflows.
  const __int128 distance = step > 0 ? static_cast<__int128>(stop) - start : static_cast<__int128>(start) - stop;
  const __int128 by = step > 0 ? static_cast<__int128>(step) : -static_cast<__int128>(step);
  const __int128 count = distance > 0 ? (distance + by - 1) / by : 0;
  if (count > kMaxRange) rt.fail("range too big: the sandbox allows " + std::to_string(kMaxRange) + " items");
  rt.spend(static_cast<size_t>(count) / 4);
  rt.keep_bytes(static_cast<size_t>(count) * sizeof(Value));
  std::vector<Value> items;
  items.reserve(static_cast<size_t>(count));
  for (int64_t i = 0; i < static_cast<int64_t>(count); ++i) {
    items.push_back(
        Value::integer(static_cast<int64_t>(static_cast<__int128>(start) + static_cast<__int128>(i) * step)));
  }
  return Value::object(rt.make<Range>(std::move(items), start, stop, step));
}

/// dict(mapping or pairs, **named).
Value make_dict(Runtime& rt, Arguments& args, Shape shape) {
  Dict* dict = rt.dict(shape);
  if (args.positional.size() > 1) rt.fail("dict expected at most 1 argument");
  if (!args.positional.empty()) {
    if (const Dict* from = as_dict(args[0])) {
      for (const auto& [key, value] : from->entries()) dict->set(rt, key, value);
    } else {
      for (const Value& item : to_vector(rt, args[0])) {
        const std::vector<Value> pair = to_vector(rt, item);
        if (pair.size() != 2) rt.fail("a dict is made of pairs");
        dict->set(rt, pair[0], pair[1]);
      }
    }
  }
  for (const auto& [key, value] : args.named) dict->set(rt, key, value);
  return Value::object(dict);
}

Value raise_exception(Runtime& rt, const Value&, Arguments& args) { rt.raise(str_of(rt, args[0])); }

/// The format with Python's %f, which C does not have, filled in; C's field widths, which are no part of Python's, go.
std::string c_format(std::string_view format) {
  std::string out;
  for (size_t i = 0; i < format.size(); ++i) {
    out += format[i];
    if (format[i] != '%' || i + 1 == format.size()) continue;
    const char c = format[i + 1];
    if (c == 'f') {
      out.back() = '0';
      out += "00000";
    } else if (c >= '0' && c <= '9') {
      out += '%';
      out += c;
    } else {
      out += c;
    }
    ++i;
  }
  return out;
}

Value strftime_now(Runtime& rt, const Value&, Arguments& args) {
  const std::string format = c_format(text_argument(rt, "strftime_now", args[0]));
  if (format.empty()) return rt.text("");
  if (format.size() > 1000) rt.fail("strftime_now: the format is too long");
  static const locale_t c_locale = newlocale(LC_ALL_MASK, "C", nullptr);
  const std::tm now = rt.now();
  std::vector<char> buffer(64 * 1024);
  const size_t size = strftime_l(buffer.data(), buffer.size(), format.c_str(), &now, c_locale);
  const std::string_view result(buffer.data(), size);
  return rt.text(valid_utf8(result) ? result : std::string_view());
}

constexpr Builtin kGlobals[] = {
    {"range", "start stop? step?", range},
    {"dict", "*", [](Runtime& rt, const Value&, Arguments& args) { return make_dict(rt, args, Shape::dict); }},
    {"namespace", "*", [](Runtime& rt, const Value&, Arguments& args) { return make_dict(rt, args, Shape::space); }},
    {"joiner", "sep?",
     [](Runtime& rt, const Value&, Arguments& args) {
       return Value::object(rt.make<Joiner>(args.has(0) ? args[0] : rt.text(", ")));
     }},
    {"cycler", "*",
     [](Runtime& rt, const Value&, Arguments& args) {
       if (args.positional.empty()) rt.fail("cycler: at least one item has to be provided");
       return Value::object(rt.make<Cycler>(args.positional));
     }},
    {"raise_exception", "message", raise_exception},
    {"strftime_now", "format", strftime_now},
};

}  // namespace

BuiltinTable globals() { return kGlobals; }

}  // namespace ellm::format::jinja
