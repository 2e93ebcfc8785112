// The collection of damaged model files: each verdict holds, each refusal names the file and what is wrong in it, and
// nothing much larger than the file is ever allocated.
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <sstream>

#include "tests/malformed/allocation_watch.h"
#include "tests/support/open_everything.h"
#include "tests/support/temp_dir.h"
#include "tests/support/test_data.h"

namespace ellm::tests {
namespace {

struct Recipe {
  std::string file, name, field, expected;
};

std::vector<Recipe> read_recipes(const std::string& path) {
  std::vector<Recipe> recipes;
  std::ifstream in(path);
  std::string line;
  std::getline(in, line);  // the heading
  while (std::getline(in, line)) {
    std::vector<std::string> cells;
    std::stringstream row(line);
    for (std::string cell; std::getline(row, cell, '\t');) cells.push_back(cell);
    if (cells.size() >= 5) recipes.push_back({cells[0], cells[1], cells[2], cells[4]});
  }
  return recipes;
}

/// Damage that belongs to no key and no tensor: the file alone is named.
bool concerns_whole_file(const std::string& name) {
  for (const char* prefix : {"magic-", "version-", "truncated-", "n-tensors-", "n-kv-", "data-truncated-", "split-"})
    if (name.starts_with(prefix)) return true;
  return false;
}

void check_message(const Recipe& recipe, const std::string& folder, const std::string& message) {
  EXPECT_TRUE(message.starts_with(folder + "/")) << message;
  const bool named = message.find("key ") != std::string::npos || message.find("tensor ") != std::string::npos;
  EXPECT_TRUE(named || concerns_whole_file(recipe.name)) << message;
  EXPECT_LT(message.size(), folder.size() + 500) << message;
  for (const char c : message) EXPECT_TRUE((c >= ' ' && c != 127) || c < 0) << "an unprintable byte in: " << message;
}

/// A template that attacks: it ends in an error, or in a text without what it was after.
void check_template(const Recipe& recipe, const std::string& outcome) {
  if (recipe.name == "tmpl-ssti") {
    EXPECT_EQ(outcome.find("uid="), std::string::npos) << outcome;
  } else if (recipe.name.starts_with("tmpl-") && recipe.expected == "accept") {
    EXPECT_TRUE(outcome.starts_with("error: chat template, line ")) << outcome.substr(0, 200);
  }
}

TEST(MalformedReference, Verdicts) {
  const auto data = test_data();
  if (!data) GTEST_SKIP() << "ELLM_TEST_DATA is not set";
  TempDir dir;
  const std::string folder = dir.path().string();
  const std::string command = "python3 '" + *data + "/malformed/make_malformed.py' '" + folder + "' > /dev/null";
  ASSERT_EQ(std::system(command.c_str()), 0) << command;
  const std::vector<Recipe> recipes = read_recipes(folder + "/recipes.tsv");
  ASSERT_GE(recipes.size(), 179u);
  for (const Recipe& recipe : recipes) {
    SCOPED_TRACE(recipe.file + ": " + recipe.field);
    const std::string path = folder + "/" + recipe.file;
    reset_largest_allocation();
    std::string message;
    try {
      check_template(recipe, open_everything(path));
    } catch (const format::FormatError& error) {
      message = error.what();
    }
    EXPECT_LE(largest_allocation(), 64 * std::filesystem::file_size(path) + (1 << 20));
    if (std::getenv("ELLM_TEST_VERBOSE"))
      std::printf("%-32s %-7s %s\n", recipe.name.c_str(), recipe.expected.c_str(), message.c_str());
    if (recipe.expected == "accept") {
      EXPECT_EQ(message, "");
    }
    if (recipe.expected == "reject") {
      EXPECT_NE(message, "") << "was accepted";
    }
    if (!message.empty()) check_message(recipe, folder, message);
  }
}

}  // namespace
}  // namespace ellm::tests
