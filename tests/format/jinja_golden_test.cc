// Small templates against what Python's jinja2 makes of them (jinja_golden.json, made by make_jinja_golden.py).
// ELLM_JINJA_GOLDEN names another file of that form.
#include <gtest/gtest.h>

#include <boost/json/parse.hpp>
#include <cstdlib>
#include <fstream>
#include <set>
#include <sstream>

#include "daemon/format/chat_template.h"

namespace ellm::format {
namespace {

namespace json = boost::json;

/// Where we know better than to do as Python does, or cannot: the reason stands beside each.
const std::set<std::string, std::less<>> kDiffering = {
    // Templates written for other engines change lists and dicts, and name the arguments of methods; both is harmless.
    "{{ l.append(4) }}",
    "{{ d.update({'z': 1}) }}",
    "{{ d.get('z', default='q') }}",
    // What Python calls its objects.
    "{{ joiner }}",
    "{{ cycler }}",
    // There is no template inheritance, no lorem ipsum, and there are no complex numbers.
    "{{ self }}",
    "{{ self.x }}",
    "{{ lipsum is defined }}",
    "{{ (-8) ** (1 / 3) }}",
    // jinja2 overlooks a tag that is opened by the very last characters.
    "{#",
    "{% raw %}",
    // jinja2 does not know the end of a target with a trailing comma.
    "{% for a, in [[1]] %}{{ a }}{% endfor %}",
};

std::string outcome(const std::string& source, const json::object& variables) {
  try {
    return "text: " + ChatTemplate::parse(source)->render(variables);
  } catch (const TemplateError& error) {
    return std::string("error: ") + error.what();
  }
}

TEST(JinjaGolden, SameAsPython) {
  const char* other = std::getenv("ELLM_JINJA_GOLDEN");
  std::ifstream in(other != nullptr ? other : ELLM_JINJA_GOLDEN_FILE, std::ios::binary);
  std::stringstream text;
  text << in.rdbuf();
  const json::value file = json::parse(text.str());
  json::object variables = file.at("variables").as_object();
  variables["now"] = file.at("now");
  size_t rows = 0;
  for (const auto& row : file.at("rows").as_array()) {
    const std::string source(row.at("t").as_string());
    if (kDiffering.contains(source)) continue;
    ++rows;
    const std::string result = outcome(source, variables);
    if (const auto* out = row.as_object().if_contains("out")) {
      EXPECT_EQ(result, "text: " + std::string(out->as_string())) << "template: " << source;
    } else {
      EXPECT_TRUE(result.starts_with("error: chat template, line "))
          << "template: " << source << "\nPython: " << row.at("why") << "\n"
          << result;
    }
  }
  EXPECT_GT(rows, 1000u);
}

}  // namespace
}  // namespace ellm::format
