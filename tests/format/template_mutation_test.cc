// Damaged versions of the published templates: rendering or a TemplateError, never anything else. Seeded, so that a
// failure comes back.
#include <gtest/gtest.h>

#include <algorithm>
#include <boost/json/parse.hpp>
#include <filesystem>
#include <fstream>
#include <random>
#include <sstream>

#include "daemon/format/chat_template.h"
#include "tests/support/test_data.h"

namespace ellm::format {
namespace {

namespace json = boost::json;

std::string read_file(const std::filesystem::path& path) {
  std::ifstream in(path, std::ios::binary);
  std::stringstream out;
  out << in.rdbuf();
  return out.str();
}

class Mutator {
 public:
  explicit Mutator(uint32_t seed) : random_(seed) {}

  std::string mutate(std::string text, const std::string& other) {
    for (size_t i = 1 + below(4); i > 0; --i) once(text, other);
    return text;
  }

 private:
  size_t below(size_t n) { return n == 0 ? 0 : random_() % n; }

  void once(std::string& text, const std::string& other) {
    static constexpr const char* kPieces[] = {"{%",
                                              "%}",
                                              "{{",
                                              "}}",
                                              "{#",
                                              "#}",
                                              "-%}",
                                              "{%-",
                                              "|",
                                              "(",
                                              ")",
                                              "[",
                                              "]",
                                              "{",
                                              "}",
                                              ".",
                                              ",",
                                              ":",
                                              "~",
                                              "**",
                                              "//",
                                              "%",
                                              " is ",
                                              " not ",
                                              " in ",
                                              " if ",
                                              " else ",
                                              "none",
                                              "'",
                                              "\"",
                                              "\\",
                                              "loop",
                                              "loop.index0",
                                              "[::-1]",
                                              "[-1]",
                                              "|tojson",
                                              "|length",
                                              "|map('upper')",
                                              "|sort",
                                              "|join",
                                              "(**{})",
                                              "(*[1])",
                                              "{% endif %}",
                                              "{% endfor %}",
                                              "{% else %}",
                                              "{% break %}",
                                              "{% for x in messages recursive %}",
                                              "{% set ns = namespace() %}",
                                              "{% macro m(a, b=1) %}",
                                              "{% endmacro %}",
                                              "{{ m(m) }}",
                                              "{% call m() %}",
                                              "{% endcall %}",
                                              "{% raw %}",
                                              "{{ loop(messages) }}",
                                              "9223372036854775807",
                                              "1e308",
                                              "\xf0\x9f\x98\x80"};
    const size_t at = below(text.size() + 1);
    const size_t length = std::min(below(40), text.size() - at);
    switch (below(6)) {
      case 0: text.erase(at, length); break;
      case 1: text.insert(at, kPieces[below(std::size(kPieces))]); break;
      case 2: text.replace(at, length, kPieces[below(std::size(kPieces))]); break;
      case 3: text.insert(below(text.size() + 1), text.substr(at, below(400))); break;
      case 4: text.insert(at, other.substr(below(other.size()), below(400))); break;
      default:
        if (at < text.size()) text[at] = static_cast<char>(below(256));
    }
  }

  std::mt19937 random_;
};

void run(int rounds) {
  const auto data = tests::test_data();
  if (!data) GTEST_SKIP() << "ELLM_TEST_DATA is not set";
  const json::value file = json::parse(read_file(*data + "/templates/expected.json"));
  std::vector<std::string> sources;
  for (const auto& entry : file.at("templates").as_object()) {
    sources.push_back(read_file(*data + "/templates/" + std::string(entry.key())));
  }
  ASSERT_EQ(sources.size(), 46u);
  const TemplateLimits limits{.steps = 100'000, .output_bytes = 1u << 20, .memory_bytes = 16u << 20};
  size_t rendered = 0, failed = 0;
  for (int round = 0; round < rounds; ++round) {
    for (size_t i = 0; i < sources.size(); ++i) {
      const auto seed = static_cast<uint32_t>(round * 1000 + static_cast<int>(i));
      SCOPED_TRACE(seed);
      const std::string source = Mutator(seed).mutate(sources[i], sources[seed % sources.size()]);
      json::object variables{{"messages", file.at("conversations").at("tools")},
                             {"tools", file.at("tools")},
                             {"add_generation_prompt", true},
                             {"bos_token", "<s>"},
                             {"eos_token", "</s>"}};
      try {
        EXPECT_LE(ChatTemplate::parse(source, limits)->render(variables).size(), limits.output_bytes);
        ++rendered;
      } catch (const TemplateError& error) {
        EXPECT_TRUE(std::string_view(error.what()).starts_with("chat template, line "));
        ++failed;
      }
    }
  }
  EXPECT_GT(rendered, 0u);
  EXPECT_GT(failed, 0u);
}

TEST(TemplateMutations, NeverCrash) { run(60); }
TEST(TemplateMutationsSlow, NeverCrash) { run(3000); }

}  // namespace
}  // namespace ellm::format
