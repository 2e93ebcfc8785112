// Python's two ways of formatting: "%s" % values and "{}".format(values).
#pragma once
#include <string>
#include <string_view>

#include "daemon/format/jinja/runtime.h"

namespace ellm::format::jinja {

/// `format % values`.
Value printf_format(Runtime& rt, const Value& format, const Value& values);
/// `format.format(*args, **kwargs)`; fields reach attributes and items by the sandbox's rules.
Value str_format(Runtime& rt, const Value& format, const Arguments& args);
/// format(value, spec) with the mini-language of format specifications.
std::string format_value(Runtime& rt, const Value& value, std::string_view spec);

/// The digits of a float as C prints them for e, E, f, F, g, G.
std::string print_real(Runtime& rt, double value, char type, int64_t precision, bool alternate = false);
/// `text` padded with `fill` to `width` code points: '<' '>' '^', or '=' (behind a sign).
std::string padded(Runtime& rt, std::string_view text, int64_t width, char align, std::string_view fill = " ");

}  // namespace ellm::format::jinja
