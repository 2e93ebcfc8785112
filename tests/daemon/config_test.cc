// The configuration's visitors: what is accepted, what is said about the rest, and the shipped sample.
#include "daemon/config.h"

#include <gtest/gtest.h>

#include <fstream>
#include <sstream>

#include "daemon/config_values.h"

namespace ellm::daemon {
namespace {

std::string error_of(const std::string& toml) {
  Config config;
  try {
    parse_config(toml, "f.toml", config);
  } catch (const ConfigError& e) {
    return e.what();
  }
  return "";
}

TEST(Config, ReadsWhatItPrints) {
  Config config;
  parse_config(R"(
socket = "/tmp/a \"b\"\u0007"
models = ["one", "two"]
threads = 7
[kv]
type = "int8"
memory = "3 GiB"
[limits]
frame = 1048576
queued_tokens = 99)",
               "f.toml", config);
  EXPECT_EQ(config.socket, "/tmp/a \"b\"\a");
  EXPECT_EQ(config.models, (std::vector<std::string>{"one", "two"}));
  EXPECT_EQ(config.threads, 7u);
  EXPECT_EQ(config.kv.type, "int8");
  EXPECT_EQ(config.kv.memory.value, 3ull << 30);
  EXPECT_EQ(config.limits.frame.value, 1u << 20);
  EXPECT_EQ(config.limits.queued_tokens, 99u);
  EXPECT_EQ(config.drain_seconds, 30u);
  Config again;
  parse_config(print_config(config), "printed", again);
  EXPECT_EQ(print_config(again), print_config(config));
  EXPECT_EQ(again.socket, config.socket);
}

TEST(Config, EveryKeyIsPrintedOnceWithItsDocumentation) {
  const Config config;
  const std::string printed = print_config(config);
  Config::visit(config, [&](std::string_view key, const auto&, const Rule&, std::string_view doc) {
    EXPECT_FALSE(doc.empty()) << key;
    EXPECT_NE(printed.find(std::string(doc.substr(0, doc.find('\n')))), std::string::npos) << key;
    if (const size_t dot = key.find('.'); dot != std::string_view::npos) {
      const std::string section = "[" + std::string(key.substr(0, dot)) + "]\n";
      EXPECT_EQ(printed.find(section), printed.rfind(section)) << key;
    }
  });
}

TEST(Config, DefaultsKeepTheirRules) {
  const Config config;
  Config::visit(config, [](const char* key, const auto& member, const Rule& rule, const char*) {
    using Member = std::decay_t<decltype(member)>;
    if constexpr (std::is_same_v<Member, Bytes>) {
      EXPECT_TRUE(member.value == 0 || fault_of(rule, member.value).empty()) << key;
    } else if constexpr (!std::is_same_v<Member, std::vector<std::string>> &&
                         !std::is_same_v<Member, std::map<std::string, std::string>>) {
      EXPECT_EQ(fault_of(rule, member), "") << key;
    }
  });
}

TEST(Config, ShippedSampleIsWhatIsPrinted) {
  std::ifstream file(ELLM_SOURCE_DIR "/systemd/ellmd.toml");
  std::ostringstream sample;
  sample << file.rdbuf();
  EXPECT_EQ(sample.str(), print_config(Config()));
}

TEST(Config, ErrorsNameFileLineKeyAndExpectation) {
  EXPECT_EQ(error_of("threads = 'x'"), "f.toml, line 1: threads is a string; expected an integer");
  EXPECT_EQ(error_of("\n\nthreads = 5000"), "f.toml, line 3: threads is 5000; expected a number from 0 to 4096");
  EXPECT_EQ(error_of("kernels = 'sse'"),
            "f.toml, line 1: kernels is 'sse'; expected auto | scalar | avx2 | avx512 | amx");
  EXPECT_EQ(error_of("[limits]\nqeued = 1"),
            "f.toml, line 2: unknown key 'limits.qeued'; did you mean 'limits.queued'?");
  EXPECT_EQ(error_of("[limits.frame]\nx = 1"), "f.toml, line 1: limits.frame is a table; expected an integer");
  EXPECT_EQ(error_of("xyzzyplugh = 1"), "f.toml, line 1: unknown key 'xyzzyplugh'");
  EXPECT_EQ(error_of("threads = 99999999999999999999").substr(0, 15), "f.toml, line 1:");
  EXPECT_EQ(error_of("socket = \"a\\u0000b\""), "f.toml, line 1: socket contains a zero byte");
}

TEST(Config, Bytes) {
  EXPECT_EQ(parse_bytes("0"), 0u);
  EXPECT_EQ(parse_bytes("123B"), 123u);
  EXPECT_EQ(parse_bytes("2K"), 2048u);
  EXPECT_EQ(parse_bytes("2 MiB"), 2u << 20);
  EXPECT_EQ(parse_bytes("16777215T"), 16777215ull << 40);
  for (const char* bad : {"", "x", "-1", "1.5G", "1X", "1GiBs", "16777216T", "99999999999999999999"}) {
    EXPECT_FALSE(parse_bytes(bad)) << bad;
  }
  for (uint64_t bytes : {0ull, 1ull, 1024ull, 3ull << 20, (3ull << 20) + 1, 1ull << 40}) {
    EXPECT_EQ(parse_bytes(print_bytes(bytes)), bytes);
  }
}

TEST(Config, Nearest) {
  EXPECT_EQ(nearest("treads", {"socket", "threads"}), "threads");
  EXPECT_EQ(nearest("kv.tpye", {"kv.type", "kv.memory"}), "kv.type");
  EXPECT_EQ(nearest("qqqqqq", {"socket", "threads"}), "");
}

}  // namespace
}  // namespace ellm::daemon
