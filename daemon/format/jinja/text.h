// UTF-8 text as Python's str sees it: code points, whitespace, case, categories. Pure functions, any thread.
// Every string_view given here must be valid UTF-8 (valid_utf8 tells), what comes back is.
#pragma once
#include <string>
#include <string_view>
#include <vector>

namespace ellm::format::jinja {

bool valid_utf8(std::string_view text);
size_t count_points(std::string_view text);

/// The code point at byte `at`, which moves behind it.
char32_t next_point(std::string_view text, size_t& at);
void append_point(std::string& out, char32_t c);
std::u32string to_points(std::string_view text);
std::string to_utf8(std::u32string_view points);

/// The byte at which code point number `point` begins (the size of the text where there are fewer).
size_t byte_of_point(std::string_view text, size_t point);

bool is_space(char32_t c);    // str.isspace
bool is_alpha(char32_t c);    // str.isalpha
bool is_decimal(char32_t c);  // str.isdecimal
bool is_digit(char32_t c);    // str.isdigit
bool is_numeric(char32_t c);  // str.isnumeric
bool is_word(char32_t c);     // \w of a regular expression
bool is_upper(char32_t c);
bool is_lower(char32_t c);
bool is_title(char32_t c);
bool is_printable(char32_t c);  // what repr() leaves as it is

std::string upper(std::string_view text);
std::string lower(std::string_view text);
std::string title(std::string_view text);       // str.title: every run of letters
std::string capitalize(std::string_view text);  // first title case, the rest lower
std::string swapcase(std::string_view text);
std::string casefold(std::string_view text);

enum class Side { left, right, both };
/// Without whitespace (as Python defines it) or, where `chars` is not null, without those code points (sorted) at the
/// ends.
std::string_view strip(std::string_view text, Side side, const std::u32string* chars = nullptr);
/// str.splitlines(keepends).
std::vector<std::string_view> split_lines(std::string_view text, bool keep_ends);

}  // namespace ellm::format::jinja
