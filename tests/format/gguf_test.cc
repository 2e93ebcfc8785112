// The GGUF reader: values and tensors of files that were written byte by byte, published models, and what is refused.
#include "daemon/format/gguf.h"

#include <gtest/gtest.h>

#include <filesystem>

#include "daemon/format/inspect.h"
#include "tests/support/gguf_builder.h"
#include "tests/support/temp_dir.h"
#include "tests/support/test_data.h"

namespace ellm::format {
namespace {

using tests::GgufBuilder;
using tests::TempDir;

GgufBuilder all_types() {
  GgufBuilder b;
  b.u8("u8", 200).i8("i8", -7).u16("u16", 65535).i16("i16", -2).u32("u32", 4000000000u).i32("i32", -5);
  b.f32("f32", 1.5f).boolean("yes", true).boolean("no", false).string("string", "a string");
  b.u64("u64", UINT64_MAX).i64("i64", 1).f64("f64", 0.1);
  b.strings("strings", {"", "one", std::string("t\0o", 3)}).strings("no strings", {});
  b.array<float>("floats", 6, {1, -2}).array<int32_t>("ints", 5, {-1, 2}).array<uint64_t>("longs", 10, {1, UINT64_MAX});
  b.array<uint8_t>("bytes", 0, {1, 2});
  return b;
}

/// The message of the FormatError that opening raises.
std::string refusal(const std::string& path) {
  try {
    Gguf::open(path);
  } catch (const FormatError& error) {
    return error.what();
  }
  return "(opened)";
}
template <typename F>
std::string message_of(F&& f) {
  try {
    f();
  } catch (const FormatError& error) {
    return error.what();
  }
  return "(no error)";
}

TEST(Gguf, ValuesOfEveryType) {
  TempDir dir;
  const auto file = Gguf::open(dir.write("m.gguf", all_types().bytes()));
  EXPECT_EQ(file->version(), 3u);
  EXPECT_EQ(file->get_uint("u8"), 200u);
  EXPECT_EQ(file->get_uint("u16"), 65535u);
  EXPECT_EQ(file->get_uint("u32"), 4000000000u);
  EXPECT_EQ(file->get_uint("u64"), UINT64_MAX);
  EXPECT_EQ(file->get_uint("i64"), 1u);
  EXPECT_EQ(file->get_float("f32"), 1.5);
  EXPECT_EQ(file->get_float("f64"), 0.1);
  EXPECT_EQ(file->find_bool("yes"), true);
  EXPECT_EQ(file->find_bool("no"), false);
  EXPECT_EQ(file->get_string("string"), "a string");
  ASSERT_TRUE(file->find_strings("strings"));
  EXPECT_EQ(*file->find_strings("strings"), (std::vector<std::string_view>{"", "one", {"t\0o", 3}}));
  EXPECT_TRUE(file->find_strings("no strings")->empty());
  EXPECT_EQ(file->find_floats("floats"), (std::vector<float>{1, -2}));
  EXPECT_EQ(file->find_ints("ints"), (std::vector<int64_t>{-1, 2}));
  EXPECT_EQ(file->find_uint("absent"), std::nullopt);
  EXPECT_EQ(file->find_strings("absent"), nullptr);
  EXPECT_EQ(file->values().size(), 19u);
  EXPECT_EQ(file->values()[2].first, "u16");
}

TEST(Gguf, WrongTypesAreNamed) {
  TempDir dir;
  const std::string path = dir.write("m.gguf", all_types().bytes());
  const auto file = Gguf::open(path);
  EXPECT_EQ(message_of([&] { file->get_uint("absent"); }), path + ": key 'absent' is missing");
  EXPECT_EQ(message_of([&] { file->get_uint("i32"); }),
            path + ": key 'i32': expected an integer of 0 or more, found i32");
  EXPECT_EQ(message_of([&] { file->get_uint("f32"); }),
            path + ": key 'f32': expected an integer of 0 or more, found f32");
  EXPECT_EQ(message_of([&] { file->get_float("u8"); }), path + ": key 'u8': expected f32 or f64, found u8");
  EXPECT_EQ(message_of([&] { file->find_bool("u8"); }), path + ": key 'u8': expected bool, found u8");
  EXPECT_EQ(message_of([&] { file->get_string("u8"); }), path + ": key 'u8': expected string, found u8");
  EXPECT_EQ(message_of([&] { file->find_strings("ints"); }),
            path + ": key 'ints': expected an array of strings, found an array of 2 i32");
  EXPECT_EQ(message_of([&] { file->find_floats("ints"); }),
            path + ": key 'ints': expected an array of f32, found an array of 2 i32");
  EXPECT_EQ(message_of([&] { file->find_ints("bytes"); }),
            path + ": key 'bytes': expected an array of integers of 32 or 64 bits, found an array of 2 u8");
  EXPECT_EQ(message_of([&] { file->find_ints("longs"); }),
            path + ": key 'longs': element 1 is 18446744073709551615, expected less than 2^63");
}

TEST(Gguf, TensorsLieWhereTheFileSays) {
  TempDir dir;
  GgufBuilder b;
  b.u32("general.alignment", 64).alignment = 64;
  b.tensor_f32("a", {3, 2}, 1.0f).tensor("b", {32}, 8, std::string(34, 'q')).tensor_f32("c", {2, 2, 2, 2}, 2.0f);
  const std::string path = dir.write("m.gguf", b.bytes());
  const auto file = Gguf::open(path);
  ASSERT_EQ(file->tensors().size(), 3u);
  const Tensor* t = file->find_tensor("b");
  ASSERT_TRUE(t);
  EXPECT_STREQ(t->type->name, "Q8_0");
  EXPECT_EQ(std::string(reinterpret_cast<const char*>(t->data.data()), t->data.size()), std::string(34, 'q'));
  EXPECT_EQ(file->find_tensor("a")->rows(), 2u);
  EXPECT_EQ(file->find_tensor("c")->elements(), 16u);
  EXPECT_EQ(reinterpret_cast<uintptr_t>(file->find_tensor("c")->data.data()) % 64, 0u);
  EXPECT_EQ(file->find_tensor("d"), nullptr);
  EXPECT_EQ(file->file_bytes(), std::filesystem::file_size(path));
}

TEST(Gguf, MetadataOutlivesTheFile) {
  TempDir dir;
  const std::string path = dir.write("m.gguf", all_types().bytes());
  const auto file = Gguf::open(path);
  EXPECT_NO_THROW(file->check_unchanged());
  std::filesystem::resize_file(path, 0);
  EXPECT_EQ(file->get_string("string"), "a string");
  EXPECT_NE(message_of([&] { file->check_unchanged(); }).find("changed while it was read"), std::string::npos);
}

TEST(Gguf, TensorsCanBeRead) {
  TempDir dir;
  GgufBuilder b;
  std::string data;
  for (int i = 0; i < 64; i++) data += static_cast<char>(i);
  b.tensor_f32("a", {3}).tensor("b", {64}, 24, data);
  const std::string path = dir.write("m.gguf", b.bytes());
  const auto file = Gguf::open(path);
  const Tensor& t = *file->find_tensor("b");
  std::string part(10, '?');
  file->read(t, 54, std::as_writable_bytes(std::span(part)));
  EXPECT_EQ(part, data.substr(54));
  EXPECT_EQ(message_of([&] { file->read(t, 55, std::as_writable_bytes(std::span(part))); }),
            path + ": tensor 'b': bytes 55 to 65 of 64 were asked for");
  std::filesystem::resize_file(path, std::filesystem::file_size(path) - 4);
  EXPECT_EQ(message_of([&] { file->read(t, 54, std::as_writable_bytes(std::span(part))); }),
            path + ": became shorter while it was read");
}

TEST(Gguf, NotAFile) {
  TempDir dir;
  EXPECT_NE(refusal((dir.path() / "absent.gguf").string()).find("cannot be opened: No such file"), std::string::npos);
  EXPECT_NE(refusal(dir.path().string()).find("is not a regular file"), std::string::npos);
}

TEST(Gguf, EveryTruncationIsRefused) {
  TempDir dir;
  GgufBuilder b = all_types();
  b.tensor_f32("a", {8});
  const std::string bytes = b.bytes();
  for (size_t n = 0; n < bytes.size(); n++) {
    const std::string path = dir.write("m.gguf", std::string_view(bytes).substr(0, n));
    const std::string message = refusal(path);
    EXPECT_EQ(message.compare(0, path.size() + 2, path + ": "), 0) << n << ": " << message;
  }
}

TEST(Gguf, SplitByHand) {
  TempDir dir;
  const auto part = [](int number, int count) {
    GgufBuilder b;
    b.u16("split.no", number).u16("split.count", count).i32("split.tensors.count", 2);
    b.tensor_f32("t" + std::to_string(number), {4}, number);
    return b.bytes();
  };
  const std::string first = dir.write("x-00001-of-00002.gguf", part(0, 2));
  EXPECT_NE(refusal(first).find("x-00002-of-00002.gguf: cannot be opened"), std::string::npos);
  const std::string second = dir.write("x-00002-of-00002.gguf", part(1, 2));
  const auto file = Gguf::open(first);
  EXPECT_EQ(file->tensors().size(), 2u);
  EXPECT_EQ(file->file_bytes(), 2 * std::filesystem::file_size(first));
  EXPECT_EQ(refusal(second), second + ": is part 2 of 2 of a split model; open the first part, " + first);
  dir.write("x-00002-of-00002.gguf", part(0, 2));
  EXPECT_NE(refusal(first).find("says that it is part 1 of 2"), std::string::npos);
  EXPECT_NE(refusal(dir.write("y.gguf", part(0, 2))).find("expected a name that ends in '-00001-of-00002.gguf'"),
            std::string::npos);
}

TEST(GgufReference, AllModelsOpen) {
  const auto data = tests::test_data();
  if (!data) GTEST_SKIP() << "ELLM_TEST_DATA is not set";
  int opened = 0;
  for (const char* folder : {"models", "synth"}) {
    for (const auto& entry : std::filesystem::directory_iterator(*data + "/" + folder)) {
      const std::string path = entry.path().string();
      if (entry.path().extension() != ".gguf") continue;
      const std::string message = refusal(path);
      if (path.ends_with("-be.gguf"))
        EXPECT_EQ(message, path + ": is a big-endian GGUF file (version 3); expected little-endian");
      else if (path.ends_with("2-of-00003.gguf") || path.ends_with("3-of-00003.gguf"))
        EXPECT_NE(message.find("; open the first part, "), std::string::npos) << message;
      else EXPECT_EQ(message, "(opened)");
      opened++;
    }
  }
  EXPECT_GE(opened, 30);
}

TEST(GgufReference, SplitEqualsWhole) {
  const auto data = tests::test_data();
  if (!data) GTEST_SKIP() << "ELLM_TEST_DATA is not set";
  const auto whole = Gguf::open(*data + "/models/stories260K.gguf");
  const auto split = Gguf::open(*data + "/models/stories260K-split-00001-of-00003.gguf");
  ASSERT_EQ(split->tensors().size(), whole->tensors().size());
  for (const Tensor& t : whole->tensors()) {
    const Tensor* other = split->find_tensor(t.name);
    ASSERT_TRUE(other) << t.name;
    EXPECT_EQ(other->dims, t.dims);
    EXPECT_TRUE(std::equal(t.data.begin(), t.data.end(), other->data.begin(), other->data.end())) << t.name;
  }
  EXPECT_EQ(whole->get_uint("tokenizer.ggml.seperator_token_id"), 0xffffffffu);
  EXPECT_EQ(parameter_count(*whole), parameter_count(*split));
}

}  // namespace
}  // namespace ellm::format
