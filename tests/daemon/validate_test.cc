// Ranges of sampling and text checks: every limit from both sides.
#include "daemon/validate.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>

namespace ellm::daemon {
namespace {

using client::Sampling;

TEST(Validate, DefaultsAndLimitsAreGood) {
  EXPECT_FALSE(fault_of(Sampling{}, 100));
  Sampling s;
  s.temperature = 0;
  s.top_p = 1e-6f;
  s.min_p = 1;
  s.repetition_penalty = 100;
  s.presence_penalty = -100;
  s.frequency_penalty = 100;
  s.logprobs = kMostLogprobs;
  s.stop.assign(64, "x");
  s.logit_bias = {{0, -100.f}, {99, 100.f}};
  EXPECT_FALSE(fault_of(s, 100)) << *fault_of(s, 100);
}

TEST(Validate, EveryFieldIsNamedWithValueAndRange) {
  constexpr float nan = std::numeric_limits<float>::quiet_NaN(), inf = std::numeric_limits<float>::infinity();
  const struct {
    float Sampling::* field;
    const char* name;
    std::vector<float> bad;
  } cases[] = {{&Sampling::temperature, "temperature", {-0.01f, 100.1f, nan, inf, -inf}},
               {&Sampling::top_p, "top_p", {0, -1, 1.01f, nan, inf}},
               {&Sampling::min_p, "min_p", {-0.01f, 1.01f, nan}},
               {&Sampling::repetition_penalty, "repetition_penalty", {0, -1, 101, nan}},
               {&Sampling::presence_penalty, "presence_penalty", {-101, 101, nan}},
               {&Sampling::frequency_penalty, "frequency_penalty", {-101, 101, nan}}};
  for (const auto& c : cases) {
    for (float value : c.bad) {
      Sampling s;
      s.*c.field = value;
      const auto fault = fault_of(s, 100);
      ASSERT_TRUE(fault) << c.name << value;
      EXPECT_EQ(fault->find(std::string(c.name) + " is "), 0u) << *fault;
      EXPECT_NE(fault->find("; allowed is "), std::string::npos);
    }
  }
  Sampling s;
  s.top_p = 0;
  EXPECT_EQ(fault_of(s, 100), "top_p is 0; allowed is more than 0 to 1");
  s = {};
  s.logprobs = 200;
  EXPECT_EQ(fault_of(s, 100), "logprobs is 200; allowed is 0 to 128");
  s = {};
  s.logit_bias = {{100, 1.f}};
  EXPECT_EQ(fault_of(s, 100), "logit_bias of token 100: the vocabulary has 100 tokens");
  EXPECT_FALSE(fault_of(s, 0));
  s.logit_bias = {{1, -inf}};
  EXPECT_EQ(fault_of(s, 100), "logit_bias of token 1 is -inf; allowed is -100 to 100");
}

TEST(Validate, ListsHaveLimits) {
  client::Chat chat;
  chat.messages.resize(65536);
  EXPECT_EQ(text_fault(chat), std::nullopt);
  chat.messages.resize(65537);
  EXPECT_EQ(text_fault(chat), "messages: there are 65537; allowed are 65536");
  client::Sampling sampling;
  sampling.stop.resize(65, "x");
  EXPECT_EQ(size_fault(sampling), "stop has 65 strings; allowed are 64");
  EXPECT_EQ(fault_of(sampling, 0), size_fault(sampling));
  sampling.stop = {"x", std::string(1025, 'x')};
  EXPECT_EQ(size_fault(sampling), "stop[1] has 1025 bytes; allowed are 1024");
}

TEST(Validate, TextsNameFieldAndByte) {
  client::Chat chat;
  chat.messages = {{"user", "good", {}, ""}, {"assistant", "b\xc3(", {}, ""}};
  EXPECT_EQ(text_fault(chat), "messages[1].content: invalid UTF-8 at byte 1");
  chat.messages[1].content = "Größe 犬 \xF0\x9F\x98\x80";
  EXPECT_FALSE(text_fault(chat));
  chat.tools = "\xed\xa0\x80";
  EXPECT_EQ(text_fault(chat), "tools: invalid UTF-8 at byte 0");
  client::Score score;
  score.text = "cut \xe7\x8a";
  EXPECT_EQ(text_fault(score), "text: invalid UTF-8 at byte 4");
  score.text.clear();
  score.top = 129;
  EXPECT_EQ(text_fault(score), "top is 129; allowed is 0 to 128");
}

}  // namespace
}  // namespace ellm::daemon
