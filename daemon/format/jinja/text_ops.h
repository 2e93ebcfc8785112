// Operations on text that filters and methods of str share.
#pragma once
#include <string>
#include <string_view>
#include <vector>

#include "daemon/format/jinja/runtime.h"
#include "daemon/format/jinja/text.h"

namespace ellm::format::jinja {

/// str.replace; a negative count: all.
std::string replace_text(Runtime& rt, std::string_view text, std::string_view old, std::string_view with,
                         int64_t count);
/// str.split without separator; a negative limit: all. From the right where `right`.
std::vector<std::string_view> split_space(Runtime& rt, std::string_view text, int64_t limit, bool right);
/// str.split(separator), which is not empty.
std::vector<std::string_view> split_at(Runtime& rt, std::string_view text, std::string_view separator, int64_t limit);
std::vector<std::string_view> split_at_right(Runtime& rt, std::string_view text, std::string_view separator,
                                             int64_t limit);
/// str.splitlines(keepends).
std::vector<std::string_view> lines_of(Runtime& rt, std::string_view text, bool keep_ends);
/// str.center, which puts the odd space where Python does.
std::string centered(Runtime& rt, std::string_view text, int64_t width, std::string_view fill);
/// strip by the optional argument 0: the characters that go.
std::string_view strip_argument(Runtime& rt, std::string_view text, Side side, const Arguments& args);

}  // namespace ellm::format::jinja
