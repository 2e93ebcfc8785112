// The visitors of the configuration but for the TOML reader (config_toml.cc).
#include "daemon/config.h"

#include <unistd.h>

#include <charconv>
#include <cstdlib>

#include "daemon/config_values.h"
#include "daemon/runtime/memory.h"
#include "shm/geometry.h"

namespace ellm::daemon {

bool is_memory_policy(const std::string& text) { return runtime::parse_memory_policy(text).has_value(); }
bool is_kv_types(const std::string& text) { return shm::find_kv_types(text).has_value(); }
bool is_disk_budget(const std::string& text) {
  return text == "auto" || text == "off" || parse_bytes(text).value_or(0) != 0;
}

// ---- values ---------------------------------------------------------------------------------------------------------

namespace {

constexpr struct {
  char letter;
  int shift;
} kUnits[] = {{'K', 10}, {'M', 20}, {'G', 30}, {'T', 40}};

std::string range_of(const Rule& rule) {
  if (rule.most == UINT64_MAX) return "a number from " + std::to_string(rule.least);
  return "a number from " + std::to_string(rule.least) + " to " + std::to_string(rule.most);
}

bool listed(std::string_view list, std::string_view word) {
  while (!list.empty()) {
    const size_t end = list.find(" | ");
    if (list.substr(0, end) == word) return true;
    list.remove_prefix(end == std::string_view::npos ? list.size() : end + 3);
  }
  return false;
}

}  // namespace

std::optional<uint64_t> parse_bytes(std::string_view text) {
  uint64_t number = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), number);
  if (error != std::errc()) return std::nullopt;
  std::string_view unit = text.substr(static_cast<size_t>(end - text.data()));
  while (!unit.empty() && unit.front() == ' ') unit.remove_prefix(1);
  if (unit.empty() || unit == "B") return number;
  for (const auto& [letter, shift] : kUnits) {
    if (unit.front() != letter) continue;
    unit.remove_prefix(1);
    if (!unit.empty() && unit != "B" && unit != "iB") return std::nullopt;
    if (number > UINT64_MAX >> shift) return std::nullopt;
    return number << shift;
  }
  return std::nullopt;
}

std::string print_bytes(uint64_t bytes) {
  for (int i = 3; i >= 0; --i) {
    const auto& unit = kUnits[i];
    if (bytes != 0 && bytes % (uint64_t{1} << unit.shift) == 0) {
      return std::to_string(bytes >> unit.shift) + unit.letter;
    }
  }
  return std::to_string(bytes);
}

std::string fault_of(const Rule& rule, uint64_t value) {
  if (value >= rule.least && value <= rule.most) return "";
  return "is " + std::to_string(value) + "; expected " + range_of(rule);
}

std::string fault_of(const Rule& rule, const std::string& value) {
  if (value.find('\0') != std::string::npos) return "contains a zero byte";
  if (rule.one_of != nullptr && !listed(rule.one_of, value)) return "is '" + value + "'; expected " + rule.one_of;
  if (rule.accepts != nullptr && !rule.accepts(value)) return "is '" + value + "'; expected " + rule.expected;
  return "";
}

// ---- the command line -----------------------------------------------------------------------------------------------

namespace {

struct TextSetter {
  std::string_view key;
  const std::string& text;
  const std::string& name;
  bool found = false;

  [[noreturn]] void refuse(const std::string& fault) const { throw ConfigError(name + " " + fault); }

  void set(std::string& member, const Rule& rule) const {
    if (const auto fault = fault_of(rule, text); !fault.empty()) refuse(fault);
    member = text;
  }
  void set(std::vector<std::string>& member, const Rule&) const { member.push_back(text); }
  void set(std::map<std::string, std::string>& member, const Rule&) const {
    const size_t equals = text.find('=');
    if (equals == std::string::npos) refuse("is '" + text + "'; expected NAME=VALUE");
    member[text.substr(0, equals)] = text.substr(equals + 1);
  }
  void set(Bytes& member, const Rule& rule) const {
    const auto bytes = parse_bytes(text);
    if (!bytes) refuse("is '" + text + "'; expected a number of bytes such as 8G");
    if (const auto fault = fault_of(rule, *bytes); !fault.empty()) refuse(fault);
    member.value = *bytes;
  }
  template <class Number>
  void set(Number& member, const Rule& rule) const {
    uint64_t value = 0;
    const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
    if (error != std::errc() || end != text.data() + text.size())
      refuse("is '" + text + "'; expected " + range_of(rule));
    if (const auto fault = fault_of(rule, value); !fault.empty()) refuse(fault);
    member = static_cast<Number>(value);
  }

  template <class Member>
  void operator()(const char* visited, Member& member, const Rule& rule, const char*) {
    if (visited != key) return;
    found = true;
    set(member, rule);
  }
};

}  // namespace

void set_option(Config& config, std::string_view key, const std::string& text, const std::string& name) {
  TextSetter setter{key, text, name};
  Config::visit(config, setter);
  if (!setter.found) throw std::logic_error("no such key: " + std::string(key));
}

// ---- printing -------------------------------------------------------------------------------------------------------

namespace {

std::string quoted(const std::string& text) {
  static constexpr char kHex[] = "0123456789ABCDEF";
  std::string out = "\"";
  for (const char c : text) {
    const auto byte = static_cast<unsigned char>(c);
    if (c == '"' || c == '\\') {
      out += '\\';
      out += c;
    } else if (byte < 0x20 || byte == 0x7f) {
      out += std::string("\\u00") + kHex[byte >> 4] + kHex[byte & 15];
    } else {
      out += c;
    }
  }
  return out + '"';
}

std::string to_toml(const std::string& value) { return quoted(value); }
std::string to_toml(const Bytes& value) { return value.value == 0 ? "0" : quoted(print_bytes(value.value)); }
std::string to_toml(uint64_t value) { return std::to_string(value); }
std::string to_toml(const std::vector<std::string>& values) {
  std::string out = "[";
  for (const auto& value : values) out += (out.size() > 1 ? ", " : "") + quoted(value);
  return out + "]";
}

struct Printer {
  std::string out, section;

  template <class Member>
  void operator()(const char* key, const Member& member, const Rule&, std::string_view doc) {
    std::string_view name = key;
    const size_t dot = name.find('.');
    const std::string_view in = dot == std::string_view::npos ? "" : name.substr(0, dot);
    if (dot != std::string_view::npos) name.remove_prefix(dot + 1);
    out += '\n';
    if (in != section) {
      section = in;
      out += "[" + section + "]\n";
    }
    print_doc(doc);
    out += std::string(name) + " = " + to_toml(member) + "\n";
  }
  /// A section whose keys are the user's.
  void operator()(const char* key, const std::map<std::string, std::string>& members, const Rule&,
                  std::string_view doc) {
    section = key;
    out += "\n[" + section + "]\n";
    print_doc(doc);
    for (const auto& [name, value] : members) out += quoted(name) + " = " + quoted(value) + "\n";
  }

  void print_doc(std::string_view doc) {
    while (!doc.empty()) {
      const size_t end = std::min(doc.find('\n'), doc.size());
      out += "# " + std::string(doc.substr(0, end)) + "\n";
      doc.remove_prefix(std::min(end + 1, doc.size()));
    }
  }
};

}  // namespace

std::string print_config(const Config& config) {
  Printer printer;
  printer.out =
      "# Configuration of ellmd, as `ellmd --print-config` prints it; a file may leave out whatever it does not "
      "change.\n"
      "# Searched in /etc/ellm/ellmd.toml, then $XDG_CONFIG_HOME/ellm/ellmd.toml; options of the command line go "
      "first.\n";
  Config::visit(config, printer);
  return printer.out;
}

std::string find_config_file() {
  const std::string system = "/etc/ellm/ellmd.toml";
  if (::access(system.c_str(), F_OK) == 0) return system;
  const auto variable = [](const char* name) {
    const char* value = std::getenv(name);
    return std::string(value == nullptr ? "" : value);
  };
  std::string base = variable("XDG_CONFIG_HOME");
  if (base.empty() && !variable("HOME").empty()) base = variable("HOME") + "/.config";
  const std::string own = base + "/ellm/ellmd.toml";
  return !base.empty() && ::access(own.c_str(), F_OK) == 0 ? own : "";
}

}  // namespace ellm::daemon
