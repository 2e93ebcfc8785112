// A chat's prompt: the template's variables, and ids that the model wrote itself in the place of their text.
#include "daemon/chat_prompt.h"

#include <gtest/gtest.h>

#include <algorithm>

#include "tests/support/temp_dir.h"
#include "tests/support/tiny_model.h"

namespace ellm::daemon {
namespace {

using Places = std::vector<std::optional<size_t>>;

Places find(const std::string& rendered, const std::string& marked, std::vector<std::string> texts) {
  return locate(rendered, marked, {"<", ">"}, texts);
}

TEST(Locate, TextsBetweenTheSameSurroundings) {
  EXPECT_EQ(find("u:a yes v:yes!", "u:a yes v:<0>!", {"yes"}), (Places{10}));
  EXPECT_EQ(find("[x][y][x]", "[<0>][<1>][<2>]", {"x", "y", "x"}), (Places{1, 4, 7}));
  EXPECT_EQ(find("xyx", "<0><1><2>", {"x", "y", "x"}), (Places{0, 1, 2}));
}

TEST(Locate, WhatTheTemplateChangedIsNotFound) {
  // The first one was trimmed, the second one stands as it is.
  EXPECT_EQ(find("[x][y]!", "[<0>][<1>]!", {" x ", "y"}), (Places{std::nullopt, 4}));
  EXPECT_EQ(find("[x][y]!", "[<0>][<1>]!", {"x", " y"}), (Places{1, std::nullopt}));
  EXPECT_EQ(find("[y]!", "[<1>]!", {"x", "y"}), (Places{std::nullopt, 1}));  // the first one was left out
}

TEST(Locate, NothingIsFoundWhereTheSurroundingsDiffer) {
  const Places none(1);
  EXPECT_EQ(find("[x] now", "[<0>] later", {"x"}), none);
  EXPECT_EQ(find("(x]", "[<0>]", {"x"}), none);
  EXPECT_EQ(find("[x]x", "[<0>]<0>", {"x"}), none);  // printed twice
  EXPECT_EQ(find("", "[<0>]", {"x"}), none);
  EXPECT_EQ(find("[xx]", "[<0>]", {"x"}), none);
  EXPECT_EQ(find("[a][b]", "[<1>][<0>]", {"b", "a"}), Places(2));  // out of order
}

/// GPT-2's printable stand-ins for bytes.
std::string stand_in(int byte) {
  static const std::vector<int> map = [] {
    std::vector<int> m(256);
    int next = 256;
    for (int b = 0; b < 256; ++b) m[b] = (b >= 33 && b <= 126) || (b >= 161 && b <= 172) || b >= 174 ? b : next++;
    return m;
  }();
  const int c = map[byte];
  if (c < 128) return std::string(1, static_cast<char>(c));
  return {static_cast<char>(0xC0 | c >> 6), static_cast<char>(0x80 | (c & 63))};
}

constexpr const char* kChatMl =
    "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}";

constexpr uint32_t kHe = 256, kLlo = 258, kStart = 259, kEndToken = 260;

/// Ids 0 … 255 are the bytes, then He, ll, llo, and two control tokens.
std::shared_ptr<const model::Model> chat_model(const tests::TempDir& folder, const std::string& chat_template) {
  auto b = tests::tiny_model();
  std::vector<std::string> tokens;
  for (int byte = 0; byte < 256; ++byte) tokens.push_back(stand_in(byte));
  for (const char* more : {"He", "ll", "llo", "<|im_start|>", "<|im_end|>"}) tokens.emplace_back(more);
  std::vector<int32_t> types(tokens.size(), 1);
  types[kStart] = types[kEndToken] = 3;
  b.string("tokenizer.ggml.model", "gpt2")
      .string("tokenizer.ggml.pre", "gpt-2")
      .strings("tokenizer.ggml.tokens", tokens);
  b.array("tokenizer.ggml.token_type", 5, types).strings("tokenizer.ggml.merges", {"H e", "l l", "ll o"});
  b.u32("tokenizer.ggml.eos_token_id", kEndToken);
  if (!chat_template.empty()) b.string("tokenizer.chat_template", chat_template);
  b.remove_tensor("token_embd.weight").tensor_f32("token_embd.weight", {32, tokens.size()});
  model::LoadOptions options;
  options.lock = false;
  return model::Model::load(folder.write("m.gguf", b.bytes()), options);
}

std::vector<uint32_t> bytes(const std::string& text) { return {text.begin(), text.end()}; }

client::Chat chat_of(std::vector<client::ChatMessage> messages) {
  client::Chat chat;
  chat.messages = std::move(messages);
  return chat;
}

TEST(Locate, LooksThroughBothTextsOnce) {
  constexpr size_t kMany = 5'000;
  std::string rendered, marked;
  const std::vector<std::string> texts(kMany, "x");
  for (size_t i = 0; i < kMany; ++i) {
    rendered += "[x]";
    marked += "[<" + std::to_string(i) + ">]";
  }
  size_t searched = 0;
  const auto places = locate(rendered, marked, {"<", ">"}, texts, &searched);
  EXPECT_EQ(places.front(), 1u);
  EXPECT_EQ(places.back(), rendered.size() - 2);
  EXPECT_LE(searched, marked.size());
  // What follows a changed text is looked for, too: here after each of them, and in vain for the last one.
  for (const char last : {']', ')'}) {
    rendered.back() = last;
    searched = 0;
    locate(rendered, marked, {"<", ">"}, std::vector<std::string>(kMany, "y"), &searched);
    EXPECT_LE(searched, marked.size() + rendered.size());
  }
  // In much that nearly is the same.
  const std::string same(1 << 20, 'a');
  EXPECT_EQ(find(same + same + "b!", "<0>" + same + "b!", {"c"}), Places(1));
}

TEST(ChatPrompt, ATextThatBeginsLikeAMark) {
  const tests::TempDir folder;
  const auto model = chat_model(folder, kChatMl);
  const std::string text = "ELLMOWNIDS" + std::string(1 << 20, 'Z');
  const auto ids =
      chat_prompt("m", *model, chat_of({{"user", text, {}, ""}, {"assistant", "Hm", bytes("Hm"), ""}})).tokens;
  EXPECT_NE(model->tokenizer()->decode(ids, true).find(text), std::string::npos);
}

TEST(ChatPrompt, RendersAndTokenizes) {
  const tests::TempDir folder;
  const auto model = chat_model(folder, kChatMl);
  const auto ids = chat_prompt("m", *model, chat_of({{"user", "Hello", {}, ""}})).tokens;
  std::vector<uint32_t> expected{kStart};
  const auto add = [&](std::vector<uint32_t> more) { expected.insert(expected.end(), more.begin(), more.end()); };
  add(bytes("user\n"));
  add({kHe, kLlo, kEndToken});
  add(bytes("\n"));
  add({kStart});
  add(bytes("assistant\n"));
  EXPECT_EQ(ids, expected);
}

TEST(ChatPrompt, OwnIdsStandInForTheirText) {
  const tests::TempDir folder;
  const auto model = chat_model(folder, kChatMl);
  const std::vector<uint32_t> own = bytes("Hello");  // not as the tokenizer would have it
  const auto at = [&](const std::vector<uint32_t>& ids) {
    return std::search(ids.begin(), ids.end(), own.begin(), own.end()) - ids.begin();
  };
  const auto plain =
      chat_prompt("m", *model,
                  chat_of({{"user", "Hello", {}, ""}, {"assistant", "Hello", {}, ""}, {"user", "Hm", {}, ""}}))
          .tokens;
  const auto spliced =
      chat_prompt("m", *model,
                  chat_of({{"user", "Hello", {}, ""}, {"assistant", "Hello", own, ""}, {"user", "Hm", {}, ""}}))
          .tokens;
  EXPECT_EQ(at(plain), static_cast<ptrdiff_t>(plain.size()));
  ASSERT_LT(at(spliced), static_cast<ptrdiff_t>(spliced.size()));
  EXPECT_EQ(spliced.size(), plain.size() + 3);  // five bytes for He and llo
  EXPECT_EQ(model->tokenizer()->decode(spliced, true), model->tokenizer()->decode(plain, true));
  EXPECT_GT(at(spliced), 10);  // the assistant's place, not the user's

  // Ids of another text, and ids that there are not: the text counts.
  for (const auto& wrong : {bytes("Hellp"), std::vector<uint32_t>{kHe}, std::vector<uint32_t>{9999}}) {
    EXPECT_EQ(
        chat_prompt("m", *model,
                    chat_of({{"user", "Hello", {}, ""}, {"assistant", "Hello", wrong, ""}, {"user", "Hm", {}, ""}}))
            .tokens,
        plain);
  }
}

TEST(ChatPrompt, ATemplateThatChangesTheTextFallsBackToIt) {
  const tests::TempDir folder;
  const std::string trims = "{% for m in messages %}<|im_start|>{{ m.content | trim }}<|im_end|>{% endfor %}";
  const auto model = chat_model(folder, trims);
  const auto trimmed = chat_prompt("m", *model, chat_of({{"assistant", " Hello", bytes(" Hello"), ""}}));
  EXPECT_EQ(trimmed.tokens, (std::vector<uint32_t>{kStart, kHe, kLlo, kEndToken}));
  EXPECT_EQ(trimmed.retokenised_until, 3u);
  const auto kept = chat_prompt("m", *model, chat_of({{"assistant", "Hello", bytes("Hello"), ""}}));
  EXPECT_EQ(kept.tokens.size(), 7u);
  EXPECT_EQ(kept.retokenised_until, 0u);
}

TEST(ChatPrompt, ExtraToolsAndVariablesReachTheTemplate) {
  const tests::TempDir folder;
  const auto model = chat_model(
      folder, "{{ messages[0].name }}|{{ tools[0].x }}|{{ mood }}|{{ eos_token }}|{{ add_generation_prompt }}");
  auto chat = chat_of({{"user", "x", {}, R"({"name": "Bo"})"}});
  chat.tools = R"([{"x": 5}])";
  chat.variables = R"({"mood": "glad", "add_generation_prompt": false})";
  EXPECT_EQ(model->tokenizer()->decode(chat_prompt("m", *model, chat).tokens, true), "Bo|5|glad|<|im_end|>|False");
}

TEST(ChatPrompt, ErrorsSayWhatIsWrong) {
  const tests::TempDir folder;
  const auto model = chat_model(folder, "{{ raise_exception('only two roles') }}");
  const auto error = [&](const model::Model& m, const client::Chat& chat) {
    try {
      chat_prompt("tiny", m, chat);
    } catch (const PromptError& e) {
      return std::string(client::name_of(e.code())) + ": " + e.what();
    }
    return std::string();
  };
  const auto good = chat_of({{"user", "x", {}, ""}});
  EXPECT_NE(error(*model, good).find("only two roles"), std::string::npos);
  EXPECT_EQ(error(*model, good).find("template_failed: model 'tiny': "), 0u);
  EXPECT_EQ(error(*model, chat_of({})), "bad_request: messages: there are none");
  EXPECT_EQ(error(*model, chat_of({{"user", "x", {}, "[1]"}})),
            "bad_request: messages[0].extra: expected a JSON object");
  auto chat = good;
  chat.tools = "{";
  EXPECT_EQ(error(*model, chat).find("bad_request: tools: invalid JSON"), 0u);
  chat.tools = "";
  chat.variables = "3";
  EXPECT_EQ(error(*model, chat), "bad_request: variables: expected a JSON object");
  const auto bare = chat_model(folder, "");
  EXPECT_EQ(error(*bare, good),
            "template_failed: model 'tiny' has no chat template; use a plain completion (ellm run --raw)");
}

}  // namespace
}  // namespace ellm::daemon
