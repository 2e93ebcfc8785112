// Layout of pprint: what fits into 80 columns stays on its line; dicts are sorted by key; long texts are split at
// spaces.
#include "daemon/format/jinja/pprint.h"

#include <algorithm>

#include "daemon/format/jinja/operators.h"
#include "daemon/format/jinja/print.h"
#include "daemon/format/jinja/text.h"
#include "daemon/format/jinja/text_ops.h"

namespace ellm::format::jinja {

namespace {

constexpr int64_t kWidth = 80;

class Pretty {
 public:
  explicit Pretty(Runtime& rt) : rt_(rt) {}
  std::string out;

  /// `indent`: the column where the value begins; `allowance`: what has to fit behind it.
  void write(const Value& v, int64_t indent, int64_t allowance, int level) {
    const Runtime::Level guard(rt_);
    ++level;
    const std::string whole = plain(v);
    rt_.check_text(out.size() + whole.size());
    if (static_cast<int64_t>(count_points(whole)) <= kWidth - indent - allowance) {
      out += whole;
    } else if (v.is_string()) {
      text(v, whole, indent, allowance, level);
    } else if (const Dict* dict = as_dict(v)) {
      out += '{';
      entries(sorted(*dict), indent + 1, allowance + 1, level);
      out += '}';
    } else if (has_shape(v, Shape::list) || has_shape(v, Shape::tuple)) {
      const auto& items = as_seq(v)->items;
      const bool list = has_shape(v, Shape::list);
      const std::string end = list ? "]" : items.size() == 1 ? ",)" : ")";
      out += list ? '[' : '(';
      for (size_t i = 0; i < items.size(); ++i) {
        if (i != 0) newline(indent + 1);
        write(items[i], indent + 1, i + 1 == items.size() ? allowance + static_cast<int64_t>(end.size()) : 1, level);
      }
      out += end;
    } else {
      out += whole;
    }
  }

 private:
  using Entries = std::vector<std::pair<Value, Value>>;

  Entries sorted(const Dict& dict) {
    Entries entries = dict.entries();
    const bool texts = std::all_of(entries.begin(), entries.end(), [](const auto& e) { return e.first.is_string(); });
    const bool numbers = std::all_of(entries.begin(), entries.end(), [](const auto& e) { return e.first.is_number(); });
    if (!texts && !numbers) return entries;
    std::stable_sort(entries.begin(), entries.end(), [this](const auto& a, const auto& b) {
      rt_.spend(1);
      return compare(rt_, CompareOp::lt, a.first, b.first);
    });
    return entries;
  }

  /// On one line, with sorted dicts.
  std::string plain(const Value& v) {
    const Runtime::Level guard(rt_);
    const Dict* dict = as_dict(v);
    const bool list = has_shape(v, Shape::list);
    if (dict == nullptr && !list && !has_shape(v, Shape::tuple)) return repr_of(rt_, v);
    std::string line = dict != nullptr ? "{" : list ? "[" : "(";
    size_t count = 0;
    const auto separate = [&] {
      rt_.spend(1);
      rt_.check_text(line.size());
      if (count++ != 0) line += ", ";
    };
    if (dict != nullptr) {
      for (const auto& [key, value] : sorted(*dict)) {
        separate();
        line += plain(key) + ": " + plain(value);
      }
      return line + "}";
    }
    for (const Value& item : as_seq(v)->items) {
      separate();
      line += plain(item);
    }
    return line + (list ? "]" : count == 1 ? ",)" : ")");
  }

  void newline(int64_t indent) {
    rt_.check_text(out.size() + static_cast<size_t>(indent));
    out += ",\n" + std::string(static_cast<size_t>(indent), ' ');
  }

  void entries(const Entries& entries, int64_t indent, int64_t allowance, int level) {
    for (size_t i = 0; i < entries.size(); ++i) {
      if (i != 0) newline(indent);
      const std::string key = plain(entries[i].first);
      out += key + ": ";
      write(entries[i].second, indent + static_cast<int64_t>(count_points(key)) + 2,
            i + 1 == entries.size() ? allowance : 1, level);
    }
  }

  std::string quoted(std::string_view text) { return repr_of(rt_, rt_.text(text)); }

  /// A line in runs of non-space characters with the space behind them.
  static std::vector<std::string_view> words(std::string_view line) {
    std::vector<std::string_view> parts;
    size_t begin = 0;
    bool space = false;
    for (size_t at = 0; at < line.size();) {
      const size_t here = at;
      const bool now = is_space(next_point(line, at));
      if (space && !now) {
        parts.push_back(line.substr(begin, here - begin));
        begin = here;
      }
      space = now;
    }
    if (begin < line.size()) parts.push_back(line.substr(begin));
    return parts;
  }

  void text(const Value& v, const std::string& whole, int64_t indent, int64_t allowance, int level) {
    if (level == 1) {
      ++indent;
      ++allowance;
    }
    std::vector<std::string> chunks;
    const auto lines = lines_of(rt_, v.text(), true);
    for (size_t i = 0; i < lines.size(); ++i) {
      const bool last_line = i + 1 == lines.size();
      const std::string line = quoted(lines[i]);
      if (static_cast<int64_t>(count_points(line)) <= kWidth - indent - (last_line ? allowance : 0)) {
        chunks.push_back(line);
        continue;
      }
      const auto parts = words(lines[i]);
      std::string current;
      for (size_t j = 0; j < parts.size(); ++j) {
        const int64_t room = kWidth - indent - (last_line && j + 1 == parts.size() ? allowance : 0);
        const std::string candidate = current + std::string(parts[j]);
        if (static_cast<int64_t>(count_points(quoted(candidate))) > room) {
          if (!current.empty()) chunks.push_back(quoted(current));
          current = parts[j];
        } else {
          current = candidate;
        }
      }
      if (!current.empty()) chunks.push_back(quoted(current));
    }
    if (chunks.size() == 1) {
      out += whole;
      return;
    }
    if (level == 1) out += '(';
    for (size_t i = 0; i < chunks.size(); ++i) {
      if (i != 0) out += "\n" + std::string(static_cast<size_t>(indent), ' ');
      out += chunks[i];
      rt_.check_text(out.size());
    }
    if (level == 1) out += ')';
  }

  Runtime& rt_;
};

}  // namespace

std::string pretty(Runtime& rt, const Value& v) {
  Pretty printer(rt);
  printer.write(v, 0, 0, 0);
  return std::move(printer.out);
}

}  // namespace ellm::format::jinja
