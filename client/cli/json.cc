// A serializer of our own: Boost's writes 0.5 as 5E-1.
#include "client/cli/json.h"

#include <charconv>
#include <cmath>

namespace ellm::cli {
namespace {

template <class T>
void write_number(std::string& out, T number) {
  char text[40];
  auto end = std::to_chars(text, text + sizeof text, number).ptr;
  out.append(text, end);
}

void write_string(std::string& out, std::string_view text) {
  static const char kHex[] = "0123456789abcdef";
  out += '"';
  for (char c : text) {
    auto byte = static_cast<unsigned char>(c);
    switch (c) {
      case '"': out += "\\\""; break;
      case '\\': out += "\\\\"; break;
      case '\n': out += "\\n"; break;
      case '\t': out += "\\t"; break;
      case '\r': out += "\\r"; break;
      default:
        if (byte < 0x20 || byte == 0x7f) out += {'\\', 'u', '0', '0', kHex[byte >> 4], kHex[byte & 15]};
        else out += c;
    }
  }
  out += '"';
}

void write(std::string& out, const boost::json::value& value) {
  switch (value.kind()) {
    case boost::json::kind::null: out += "null"; break;
    case boost::json::kind::bool_: out += value.get_bool() ? "true" : "false"; break;
    case boost::json::kind::int64: write_number(out, value.get_int64()); break;
    case boost::json::kind::uint64: write_number(out, value.get_uint64()); break;
    case boost::json::kind::double_:
      if (std::isfinite(value.get_double())) write_number(out, value.get_double());
      else out += "null";
      break;
    case boost::json::kind::string: write_string(out, {value.get_string().data(), value.get_string().size()}); break;
    case boost::json::kind::array: {
      const char* separator = "[";
      if (value.get_array().empty()) out += "[";
      for (const auto& element : value.get_array()) out += std::exchange(separator, ", "), write(out, element);
      out += "]";
      break;
    }
    case boost::json::kind::object: {
      const char* separator = "{";
      if (value.get_object().empty()) out += "{";
      for (const auto& member : value.get_object()) {
        out += std::exchange(separator, ", ");
        write_string(out, {member.key().data(), member.key().size()});
        out += ": ";
        write(out, member.value());
      }
      out += "}";
      break;
    }
  }
}

}  // namespace

double shortest_double(float value) {
  if (!std::isfinite(value)) return value;
  char text[40];
  auto end = std::to_chars(text, text + sizeof text, value).ptr;
  double number = value;
  std::from_chars(text, end, number);
  return number;
}

std::string serialize(const boost::json::value& value) {
  std::string out;
  write(out, value);
  return out;
}

}  // namespace ellm::cli
