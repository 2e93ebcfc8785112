// Published chat templates over several conversations, with tools and without, against Python's jinja2.
#include <boost/json.hpp>

#include "daemon/format/chat_template.h"
#include "tools/conformance/report.h"
#include "tools/conformance/template_case.h"

namespace ellm::conformance {
namespace {

namespace json = boost::json;

struct Outcome {
  std::string text, error;
  bool raised = false;  // by the template itself
};

Outcome render(const std::string& source, const json::object& variables) {
  Outcome outcome;
  try {
    outcome.text = format::ChatTemplate::parse(source)->render(variables);
  } catch (const format::TemplateError& error) {
    outcome.error = error.what();
    outcome.raised = error.raised();
  }
  return outcome;
}

}  // namespace

std::vector<Line> template_lines(const Options& options) {
  const json::value file = json::parse(read_file(options.data + "/templates/expected.json"));
  const json::object& expected = file.as_object();
  Line rendered{"templates", "rendered"}, raised{"templates", "raise an error"}, other{"templates", "fail in jinja2"};
  for (const auto& [name, cases] : expected.at("templates").as_object()) {
    const std::string source = read_file(options.data + "/templates/" + std::string(name));
    for (const auto& [which, verdict] : cases.as_object()) {
      const Outcome outcome = render(source, variables_of(expected, which));
      const std::string what = std::string(name) + ", " + std::string(which) + ": " + outcome.error;
      if (const json::value* text = verdict.as_object().if_contains("ok")) {
        rendered.count(outcome.error.empty() && outcome.text == std::string_view(text->as_string()), what);
      } else if (verdict.at("kind") == "raise") {
        const std::string_view message = verdict.at("err").as_string();
        raised.count(outcome.raised && outcome.error.find(message) != std::string::npos, what);
      } else {  // an error, or a sensible rendering
        other.count(!outcome.raised && outcome.text.empty() != outcome.error.empty(), what);
      }
    }
  }
  return {rendered, raised, other};
}

}  // namespace ellm::conformance
