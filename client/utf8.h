// UTF-8: is it, and what to print where it is not. Pure; any thread.
#pragma once
#include <cstddef>
#include <string>
#include <string_view>

namespace ellm::client {

/// Well-formed UTF-8 (Unicode 15, table 3-7: no surrogates, no overlong forms, nothing above U+10FFFF).
bool is_utf8(std::string_view bytes);
/// The first byte that is not part of well-formed UTF-8; bytes.size() where all is.
size_t utf8_length(std::string_view bytes);

/// The same text with U+FFFD for every maximal part that is not UTF-8.
std::string to_utf8(std::string_view bytes);

}  // namespace ellm::client
