// The published chat templates, rendered over the conversations of expected.json and compared with Python's jinja2.
#include "daemon/format/chat_template.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <boost/json/parse.hpp>
#include <filesystem>
#include <fstream>
#include <sstream>

#include "tests/support/test_data.h"

namespace ellm::format {
namespace {

namespace json = boost::json;

std::string read_file(const std::string& path) {
  std::ifstream in(path, std::ios::binary);
  EXPECT_TRUE(in) << path;
  std::stringstream out;
  out << in.rdbuf();
  return out.str();
}

/// The variables of a case such as "tools+gen".
json::object variables_of(const json::object& expected, std::string_view which) {
  json::object variables;
  const bool generate = which.ends_with("+gen");
  if (generate) which.remove_suffix(4);
  variables["messages"] = expected.at("conversations").at(which);
  variables["add_generation_prompt"] = generate;
  variables["bos_token"] = "<s>";
  variables["eos_token"] = "</s>";
  variables["now"] = "2024-07-26";
  if (which == "tools") variables["tools"] = expected.at("tools");
  return variables;
}

TEST(ChatTemplates, RenderAsPublished) {
  const auto data = tests::test_data();
  if (!data) GTEST_SKIP() << "ELLM_TEST_DATA is not set";
  const json::value file = json::parse(read_file(*data + "/templates/expected.json"));
  const json::object& expected = file.as_object();
  int cases = 0, raised = 0;
  for (const auto& [name, verdicts] : expected.at("templates").as_object()) {
    const auto parsed = ChatTemplate::parse(read_file(*data + "/templates/" + std::string(name)));
    for (const auto& [which, verdict] : verdicts.as_object()) {
      ++cases;
      std::string text, error;
      bool by_template = false;
      try {
        text = parsed->render(variables_of(expected, which));
      } catch (const TemplateError& e) {
        error = e.what();
        by_template = e.raised();
      }
      SCOPED_TRACE(std::string(name) + " " + std::string(which));
      if (const auto* ok = verdict.as_object().if_contains("ok")) {
        EXPECT_EQ(error, "");
        EXPECT_EQ(text, std::string_view(ok->as_string()));
      } else if (verdict.at("kind") == "raise") {
        EXPECT_TRUE(by_template);
        EXPECT_NE(error.find(std::string_view(verdict.at("err").as_string())), std::string::npos) << error;
        ++raised;
      } else {
        EXPECT_FALSE(by_template) << error;
        EXPECT_NE(text.empty(), error.empty());
      }
    }
  }
  EXPECT_EQ(cases, 368);
  EXPECT_EQ(raised, 6);
}

}  // namespace
}  // namespace ellm::format
