// str() and repr() of values, as Python prints them. Pure but for the limits of the render.
#pragma once
#include <string>
#include <string_view>

#include "daemon/format/jinja/runtime.h"

namespace ellm::format::jinja {

/// The shortest text that reads back as `value`, in Python's layout: 1.0, 1e+16, 0.0001, nan.
std::string repr_real(double value);

void append_str(Runtime& rt, std::string& out, const Value& v);
void append_repr(Runtime& rt, std::string& out, const Value& v);
std::string str_of(Runtime& rt, const Value& v);
std::string repr_of(Runtime& rt, const Value& v);
/// A string as it is, anything else as a new string.
Value to_text(Runtime& rt, const Value& v);
/// HTML's five characters as entities.
std::string escape_html(Runtime& rt, std::string_view text);

}  // namespace ellm::format::jinja
