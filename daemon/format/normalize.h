// Unicode normalisation form C, for tokenizers that ask for it. Pure functions over bytes.
#pragma once
#include <string>
#include <string_view>

namespace ellm::format {

/// True when `text` is NFC already as far as a look at single characters shows (the usual case); bytes that are not
/// UTF-8 don't matter.
bool is_surely_nfc(std::string_view text);

/// NFC of the valid parts of `text`; bytes that are not UTF-8 stay as they are and separate what stands around them.
std::string to_nfc(std::string_view text);

}  // namespace ellm::format
