// The published chat templates, rendered over the conversations of expected.json and compared with Python's jinja2.
#include "daemon/format/chat_template.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <boost/json/parse.hpp>
#include <filesystem>
#include <fstream>
#include <sstream>

#include "daemon/format/gguf.h"
#include "tests/support/real_models.h"
#include "tests/support/test_data.h"
#include "tools/conformance/template_case.h"

namespace ellm::format {
namespace {

namespace json = boost::json;
using conformance::variables_of;

std::string read_file(const std::string& path) {
  std::ifstream in(path, std::ios::binary);
  EXPECT_TRUE(in) << path;
  std::stringstream out;
  out << in.rdbuf();
  return out.str();
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

std::string chatml(std::string_view role, std::string_view content) {
  return "<|im_start|>" + std::string(role) + "\n" + std::string(content) + "<|im_end|>\n";
}

/// The templates of the models that `ellm pull` knows, as they stand in the models' files.
TEST(ChatTemplates, OfRealModels) {
  int found = 0;
  for (const std::string name : {"smollm2", "qwen-0.5b", "qwen-1.5b"}) {
    const std::string path = tests::find_real_model(name);
    if (path.empty()) continue;
    ++found;
    const auto file = Gguf::open(path);
    const auto parsed = ChatTemplate::parse(file->get_string("tokenizer.chat_template"));
    const std::string system = name == "smollm2"
                                   ? "You are a helpful AI assistant named SmolLM, trained by Hugging Face"
                                   : "You are Qwen, created by Alibaba Cloud. You are a helpful assistant.";
    const json::object user{{"role", "user"}, {"content", "Grüße {{ 1 }}"}};
    const json::object assistant{{"role", "assistant"}, {"content", " Hi\n"}};
    EXPECT_EQ(parsed->render({{"messages", json::array{user, assistant}}}),
              chatml("system", system) + chatml("user", "Grüße {{ 1 }}") + chatml("assistant", " Hi\n"));
    EXPECT_EQ(parsed->render({{"messages", json::array{{{"role", "system"}, {"content", "Short"}}, user}},
                              {"add_generation_prompt", true}}),
              chatml("system", "Short") + chatml("user", "Grüße {{ 1 }}") + "<|im_start|>assistant\n");
  }
  if (found == 0) GTEST_SKIP() << "no real model here";
}

}  // namespace
}  // namespace ellm::format
