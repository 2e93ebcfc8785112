// Names of models, places, log lines.
#include <gtest/gtest.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>

#include "daemon/listener.h"
#include "daemon/log.h"
#include "daemon/model_files.h"
#include "tests/support/temp_dir.h"

namespace ellm::daemon {
namespace {

TEST(ModelFiles, Names) {
  EXPECT_EQ(model_name("/a/b/Qwen2.5.gguf"), "Qwen2.5");
  EXPECT_EQ(model_name("big-00001-of-00003.gguf"), "big");
  EXPECT_EQ(model_name("big-00001-of-0003.gguf"), "big-00001-of-0003");
  EXPECT_EQ(model_name("plain"), "plain");
  EXPECT_EQ(model_name("-00001-of-00003.gguf"), "-00001-of-00003");
  EXPECT_EQ(model_name("big-00004-of-00003.gguf"), "big-00004-of-00003");  // no such part
  EXPECT_EQ(model_name("big-00000-of-00003.gguf"), "big-00000-of-00003");
  const format::PartName part = format::parse_part_name("/a/big-00002-of-00003.gguf");
  EXPECT_EQ(format::part_file_name(part.stem, part.number, part.count), "big-00002-of-00003.gguf");
  EXPECT_EQ(format::part_file_name("big", 1, 1), "big.gguf");
}

TEST(ModelFiles, NamesThatMayNotBe) {
  for (const char* good : {"a", "Qwen 2.5 (fast)", "größer"}) EXPECT_EQ(format::model_name_fault(good), "") << good;
  for (const std::string bad : {"", ".hidden", "..", "a/b", "a\nb", "\x1b[2J", "\xff"}) {
    EXPECT_NE(format::model_name_fault(bad), "") << bad;
  }
  EXPECT_EQ(format::model_name_fault(std::string(200, 'x')), "");
  EXPECT_NE(format::model_name_fault(std::string(201, 'x')), "");
}

TEST(ModelFiles, FindsFirstPartsAndHidesDoubles) {
  const tests::TempDir first, second;
  const auto touch = [](const std::string& path) { std::ofstream(path) << "x"; };
  for (const char* name :
       {"b.gguf", "split-00001-of-00002.gguf", "split-00002-of-00002.gguf", "notes.txt", ".hidden.gguf"}) {
    touch(first.path().string() + "/" + name);
  }
  touch(second.path().string() + "/b.gguf");
  touch(second.path().string() + "/Alpha.gguf");
  std::filesystem::create_directory(second.path().string() + "/directory.gguf");
  const auto files = find_model_files({first.path().string(), second.path().string(), "/nowhere"});
  std::string names;
  for (const auto& file : files) names += file.name + " ";
  EXPECT_EQ(names, "Alpha b split ");
  EXPECT_EQ(find_model_file(files, "b")->path, first.path().string() + "/b.gguf");
  EXPECT_EQ(find_model_file(files, "alpha")->name, "Alpha");
  EXPECT_EQ(find_model_file(files, "Alpha.gguf")->name, "Alpha");
  EXPECT_EQ(find_model_file(files, "split")->path, first.path().string() + "/split-00001-of-00002.gguf");
  EXPECT_EQ(find_model_file(files, "c"), nullptr);
  EXPECT_EQ(find_model_file(files, ""), nullptr);
  EXPECT_EQ(find_model_file(files, "../b"), nullptr);
}

TEST(ModelFiles, SaysWhichDirectoriesCannotBeRead) {
  const tests::TempDir folder;
  const std::string file = folder.path().string() + "/file";
  std::ofstream(file) << "x";
  EXPECT_EQ(directory_faults({folder.path().string(), "/nowhere"}), std::vector<std::string>());
  EXPECT_EQ(directory_faults({"/nowhere", file}),
            std::vector<std::string>{"cannot read " + file + ": Not a directory"});
}

TEST(Places, SocketInTheOrderOfTheDocumentation) {
  const auto with = [](const char* own, const char* runtime) {
    own == nullptr ? ::unsetenv("ELLM_SOCKET") : ::setenv("ELLM_SOCKET", own, 1);
    runtime == nullptr ? ::unsetenv("XDG_RUNTIME_DIR") : ::setenv("XDG_RUNTIME_DIR", runtime, 1);
  };
  with("/e", "/r");
  EXPECT_EQ(listen_path("/configured"), "/configured");
  EXPECT_EQ(listen_path(""), "/e");
  with(nullptr, "/r");
  EXPECT_EQ(listen_path(""), "/r/ellm/ellmd.sock");
  with(nullptr, nullptr);
  EXPECT_EQ(listen_path(""), "/run/ellm/ellmd.sock");
}

TEST(Log, LinesCannotBeForged) {
  EXPECT_EQ(log_line(Priority::error, "a\nellmd: b\x1b[1m", false), "ellmd: a ellmd: b [1m\n");
  EXPECT_EQ(log_line(Priority::warning, "x", true), "<4>x\n");
}

}  // namespace
}  // namespace ellm::daemon
