// See model_name.h.
#include "daemon/format/model_name.h"

#include <charconv>
#include <cstdio>

#include "daemon/format/utf8.h"

namespace ellm::format {
namespace {

constexpr std::string_view kExtension = ".gguf", kPattern = "-#####-of-#####";
constexpr size_t kLongestName = 200;  // a file name may have 255 bytes, with suffixes

uint32_t number_of(std::string_view digits) {
  uint32_t number = 0;
  std::from_chars(digits.data(), digits.data() + digits.size(), number);
  return number;
}

bool is_part_suffix(std::string_view tail) {
  for (size_t i = 0; i < kPattern.size(); ++i) {
    const bool digit = tail[i] >= '0' && tail[i] <= '9';
    if (kPattern[i] == '#' ? !digit : tail[i] != kPattern[i]) return false;
  }
  return true;
}

}  // namespace

PartName parse_part_name(std::string_view path) {
  std::string_view name = path.substr(path.rfind('/') + 1);
  if (name.size() > kExtension.size() && name.ends_with(kExtension)) name.remove_suffix(kExtension.size());
  PartName part{std::string(name)};
  if (name.size() <= kPattern.size()) return part;
  const std::string_view tail = name.substr(name.size() - kPattern.size());
  if (!is_part_suffix(tail)) return part;
  const uint32_t number = number_of(tail.substr(1, 5)), count = number_of(tail.substr(10, 5));
  if (number == 0 || number > count) return part;
  name.remove_suffix(kPattern.size());
  return {std::string(name), number, count};
}

std::string part_file_name(const std::string& stem, uint64_t number, uint64_t count) {
  if (count <= 1) return stem + ".gguf";
  char suffix[64];
  std::snprintf(suffix, sizeof suffix, "-%05ju-of-%05ju.gguf", static_cast<uintmax_t>(number),
                static_cast<uintmax_t>(count));
  return stem + suffix;
}

std::string model_name_fault(std::string_view name) {
  if (name.empty()) return "a model's name is empty";
  if (name.size() > kLongestName) return "a model's name has more than " + std::to_string(kLongestName) + " bytes";
  if (name.front() == '.') return "a model's name begins with a dot";
  if (valid_utf8_prefix(name) != name.size()) return "a model's name is not UTF-8";
  for (const char c : name) {
    if (c == '/') return "a model's name holds a slash";
    if (static_cast<unsigned char>(c) < 0x20 || c == 0x7f) return "a model's name holds a control character";
  }
  return {};
}

}  // namespace ellm::format
