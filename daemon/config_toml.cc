// Reads the configuration's TOML. Every error names file, line and key.
#include <toml++/toml.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <cstring>
#include <memory>

#include "daemon/config_values.h"

namespace ellm::daemon {

std::string nearest(std::string_view word, const std::vector<std::string>& known) {
  std::string best;
  size_t best_distance = std::max<size_t>(2, word.size() / 3) + 1;
  for (const std::string& candidate : known) {
    // Optimal string alignment over three rows.
    std::vector<size_t> before(candidate.size() + 1), last(candidate.size() + 1), row(candidate.size() + 1);
    for (size_t j = 0; j <= candidate.size(); ++j) last[j] = j;
    for (size_t i = 1; i <= word.size(); ++i) {
      row[0] = i;
      for (size_t j = 1; j <= candidate.size(); ++j) {
        const bool same = word[i - 1] == candidate[j - 1];
        row[j] = std::min({row[j - 1] + 1, last[j] + 1, last[j - 1] + !same});
        if (i > 1 && j > 1 && word[i - 1] == candidate[j - 2] && word[i - 2] == candidate[j - 1]) {
          row[j] = std::min(row[j], before[j - 2] + 1);
        }
      }
      std::swap(before, last);
      std::swap(last, row);
    }
    if (last[candidate.size()] < best_distance) {
      best_distance = last[candidate.size()];
      best = candidate;
    }
  }
  return best;
}

namespace {

constexpr size_t kMostBytes = 1 << 20;

const char* name_of(toml::node_type type) {
  switch (type) {
    case toml::node_type::table: return "a table";
    case toml::node_type::array: return "an array";
    case toml::node_type::string: return "a string";
    case toml::node_type::integer: return "an integer";
    case toml::node_type::floating_point: return "a float";
    case toml::node_type::boolean: return "a boolean";
    default: return "a date or time";
  }
}

struct Reader {
  const std::string& file;
  Config& config;

  [[noreturn]] void fail(const toml::node& node, const std::string& what) const {
    throw ConfigError(file + ", line " + std::to_string(node.source().begin.line) + ": " + what);
  }
  [[noreturn]] void fail_type(const toml::node& node, const std::string& key, const char* wanted) const {
    fail(node, key + " is " + name_of(node.type()) + "; expected " + wanted);
  }
  template <class Value>
  void check(const toml::node& node, const std::string& key, const Rule& rule, const Value& value) const {
    if (const auto fault = fault_of(rule, value); !fault.empty()) fail(node, key + " " + fault);
  }

  void set(const toml::node& node, const std::string& key, std::string& member, const Rule& rule) const {
    if (!node.is_string()) fail_type(node, key, "a string");
    check(node, key, rule, node.as_string()->get());
    member = node.as_string()->get();
  }
  void set(const toml::node& node, const std::string& key, std::vector<std::string>& member, const Rule& rule) const {
    if (!node.is_array()) fail_type(node, key, "an array of strings");
    member.clear();
    for (const auto& element : *node.as_array()) set(element, key, member.emplace_back(), rule);
  }
  void set(const toml::node& node, const std::string& key, std::map<std::string, std::string>& members,
           const Rule& rule) const {
    if (!node.is_table()) fail_type(node, key, ("a section: [" + key + "]").c_str());
    for (const auto& [name, value] : *node.as_table()) {
      set(value, key + "." + std::string(name.str()), members[std::string(name.str())], rule);
    }
  }
  void set(const toml::node& node, const std::string& key, Bytes& member, const Rule& rule) const {
    if (node.is_string()) {
      const auto bytes = parse_bytes(node.as_string()->get());
      if (!bytes) fail(node, key + " is '" + node.as_string()->get() + "'; expected a number of bytes such as \"8G\"");
      check(node, key, rule, *bytes);
      member.value = *bytes;
    } else {
      set(node, key, member.value, rule);
    }
  }
  template <class Number>
  void set(const toml::node& node, const std::string& key, Number& member, const Rule& rule) const {
    if (!node.is_integer()) fail_type(node, key, "an integer");
    const int64_t value = node.as_integer()->get();
    if (value < 0) fail(node, key + " is negative");
    check(node, key, rule, static_cast<uint64_t>(value));
    member = static_cast<Number>(value);
  }

  /// Absent: no such key.
  bool set_key(const toml::node& node, const std::string& key) {
    bool found = false;
    Config::visit(config, [&](const char* visited, auto& member, const Rule& rule, const char*) {
      if (found || key != visited) return;
      found = true;
      set(node, key, member, rule);
    });
    return found;
  }

  void read_table(const toml::table& table, const std::string& prefix) {
    std::vector<std::string> known, sections;
    Config::visit(config, [&](const char* key, auto&, const Rule&, const char*) {
      known.emplace_back(key);
      if (const size_t dot = known.back().find('.'); dot != std::string::npos) {
        sections.push_back(known.back().substr(0, dot));
      }
    });
    for (const auto& [name, node] : table) {
      const std::string key = prefix + std::string(name.str());
      const bool section = prefix.empty() && std::find(sections.begin(), sections.end(), key) != sections.end();
      if (section) {
        if (!node.is_table()) fail_type(node, key, ("a section: [" + key + "]").c_str());
        read_table(*node.as_table(), key + ".");
      } else if (!set_key(node, key)) {
        known.insert(known.end(), sections.begin(), sections.end());
        const std::string near = nearest(key, known);
        const auto line = name.source().begin.line;
        throw ConfigError(file + ", line " + std::to_string(line) + ": unknown key '" + key + "'" +
                          (near.empty() ? "" : "; did you mean '" + near + "'?"));
      }
    }
  }
};

}  // namespace

void parse_config(std::string_view text, const std::string& name, Config& config) {
  toml::table table;
  try {
    table = toml::parse(text);
  } catch (const toml::parse_error& e) {
    throw ConfigError(name + ", line " + std::to_string(e.source().begin.line) + ": " + std::string(e.description()));
  }
  Reader{name, config}.read_table(table, "");
}

void read_config(const std::string& path, Config& config) {
  const auto fail = [&] { throw ConfigError(path + ": cannot be read: " + std::strerror(errno)); };
  std::FILE* opened = std::fopen(path.c_str(), "rbe");
  if (opened == nullptr) fail();
  const std::unique_ptr<std::FILE, int (*)(std::FILE*)> file(opened, &std::fclose);
  std::string text;
  char piece[4096];
  while (const size_t got = std::fread(piece, 1, sizeof piece, opened)) {
    text.append(piece, got);
    if (text.size() > kMostBytes)
      throw ConfigError(path + ": has more than " + std::to_string(kMostBytes) + " bytes; is it a configuration?");
  }
  if (std::ferror(opened) != 0) fail();
  parse_config(text, path, config);
}

}  // namespace ellm::daemon
