// What a hostile template may try: each ends in a TemplateError, without much time, memory or stack.
#include <gtest/gtest.h>

#include <boost/json/parse.hpp>
#include <string>
#include <thread>
#include <vector>

#include "daemon/format/chat_template.h"

namespace ellm::format {
namespace {

std::string repeat(std::string_view text, size_t times) {
  std::string out;
  out.reserve(text.size() * times);
  for (size_t i = 0; i < times; ++i) out += text;
  return out;
}

/// The message of the error that parsing or rendering ends in; empty where it succeeds.
std::string error_of(const std::string& source, const TemplateLimits& limits = {}) {
  try {
    ChatTemplate::parse(source, limits)->render({});
    return {};
  } catch (const TemplateError& error) {
    return error.what();
  }
}

/// `reason` is a part of the message; empty where any error will do.
void expect_error(const std::string& source, std::string_view reason, const TemplateLimits& limits = {}) {
  const std::string error = error_of(source, limits);
  EXPECT_TRUE(!error.empty() && error.find(reason) != std::string::npos)
      << "template: " << source.substr(0, 120) << "\nended with: " << error;
}

/// A tenth of the usual limits, for what runs into them.
const TemplateLimits kQuick{.steps = 2'000'000, .output_bytes = 8u << 20, .memory_bytes = 32u << 20};

void expect_quick_error(const std::string& source, std::string_view reason) { expect_error(source, reason, kQuick); }

TEST(JinjaLimits, DepthOfTheSource) {
  constexpr size_t kMany = 100'000;
  constexpr std::string_view kDeep = "nested too deeply";
  expect_error("{{ " + repeat("(", kMany) + "1" + repeat(")", kMany) + " }}", kDeep);
  expect_error("{{ " + repeat("[", kMany) + repeat("]", kMany) + " }}", kDeep);
  expect_error("{{ " + repeat("{1:", kMany) + "1" + repeat("}", kMany) + " }}", kDeep);
  expect_error("{{ " + repeat("f(", kMany) + repeat(")", kMany) + " }}", kDeep);
  expect_error("{{ " + repeat("x[", kMany) + "1" + repeat("]", kMany) + " }}", kDeep);
  expect_error("{{ " + repeat("not ", kMany) + "1 }}", kDeep);
  expect_error("{{ " + repeat("- ", kMany) + "1 }}", kDeep);
  expect_error("{{ " + repeat("1 if 1 else ", kMany) + "1 }}", kDeep);
  expect_error("{{ " + repeat("1 is sameas (", kMany) + "1" + repeat(")", kMany) + " }}", kDeep);
  expect_error("{% set " + repeat("(", kMany) + "x" + repeat(")", kMany) + " = 1 %}", kDeep);
  for (const char* tag : {"{% if 1 %}", "{% for x in [1] %}", "{% with %}", "{% filter upper %}", "{% set x %}",
                          "{% macro m() %}", "{% call m() %}", "{% generation %}", "{% block b %}"}) {
    expect_error(repeat(tag, 60'000), kDeep);
  }
}

TEST(JinjaLimits, DepthOfTheEvaluation) {
  constexpr size_t kMany = 100'000;
  constexpr std::string_view kDeep = "nested too deeply";
  expect_error("{{ 1" + repeat(" + 1", kMany) + " }}", kDeep);
  expect_error("{{ 0" + repeat(" or 0", kMany) + " }}", kDeep);
  expect_error("{% set x = {} %}{{ x" + repeat(".x", kMany) + " }}", kDeep);
  expect_error("{{ 'x'" + repeat("|upper", kMany) + " }}", kDeep);
  expect_error("{{ 'x'" + repeat(".upper()", kMany) + " }}", kDeep);
  // Chains that are flat for the interpreter, too.
  EXPECT_EQ(error_of("{{ 1" + repeat(" ~ 1", kMany) + " }}"), "");
  EXPECT_EQ(error_of("{{ 1" + repeat(" <= 1", kMany) + " }}"), "");
  EXPECT_EQ(error_of("{% if 0 %}" + repeat("{% elif 0 %}", kMany) + "{% endif %}"), "");
  EXPECT_EQ(error_of(repeat("{% if 1 %}{% endif %}", kMany)), "");
}

TEST(JinjaLimits, Recursion) {
  constexpr std::string_view kDeep = "nested too deeply";
  expect_error("{% macro m() %}{{ m() }}{% endmacro %}{{ m() }}", kDeep);
  expect_error("{% macro a() %}{{ b() }}{% endmacro %}{% macro b() %}{{ a() }}{% endmacro %}{{ a() }}", kDeep);
  expect_error("{% macro m(x=m()) %}{{ x }}{% endmacro %}{{ m() }}", "m");
  expect_error("{% macro m() %}{% call m() %}{{ caller() }}{% endcall %}{{ caller }}{% endmacro %}{{ m() }}", kDeep);
  expect_error(
      "{% macro m() %}{% filter upper %}{% set x %}{{ m() }}{% endset %}{% endfilter %}{% endmacro %}{{ m() }}", kDeep);
  expect_error("{% for x in [1] recursive %}{{ loop([1]) }}{% endfor %}", kDeep);
  expect_error(
      "{% set l = [1] %}{% do l.append(l) %}{% for x in l recursive %}{% if x is sequence %}{{ loop(x) }}{% endif %}{% "
      "endfor %}",
      kDeep);
  expect_error(
      "{% set ns = namespace() %}{% for x in [1, 2] if ns.l.nextitem %}{% endfor %}"
      "{% for x in [1, 2] if x == 1 or ns.l.nextitem is defined %}{% set ns.l = loop %}{{ loop.nextitem }}{% endfor %}",
      "");
}

TEST(JinjaLimits, Values) {
  // Values nested deeply by a loop, and cycles.
  constexpr std::string_view kDeep = "nested too deeply";
  const std::string deep =
      "{% set ns = namespace(x=(), y=()) %}{% for i in range(100000) %}"
      "{% set ns.x = (ns.x,) %}{% set ns.y = (ns.y,) %}{% endfor %}";
  EXPECT_EQ(error_of(deep), "");
  expect_error(deep + "{{ ns.x }}", kDeep);
  expect_error(deep + "{{ ns.x == ns.y }}", kDeep);
  expect_error(deep + "{{ ns.x < ns.y }}", kDeep);
  expect_error(deep + "{{ {ns.x: 1} }}", kDeep);
  expect_error(deep + "{{ ns.x|tojson }}", kDeep);
  expect_error(deep + "{{ ns.x|pprint }}", kDeep);
  const std::string cyclic = "{% set a = [] %}{% set b = [] %}{% do a.append(a) %}{% do b.append(b) %}";
  EXPECT_EQ(ChatTemplate::parse(cyclic + "{{ a }}")->render({}), "[[...]]");
  expect_error(cyclic + "{{ a == b }}", kDeep);
  expect_error(cyclic + "{{ a < b }}", kDeep);
  expect_error(cyclic + "{{ [a, b]|sort }}", kDeep);
  expect_error(cyclic + "{{ a|tojson }}", "circular");
  expect_error(cyclic + "{{ a|pprint }}", kDeep);
  // Shared, not copied: printing it would take 2^60 steps.
  const std::string shared =
      "{% set ns = namespace(x=[1]) %}{% for i in range(60) %}{% set ns.x = [ns.x, ns.x] %}{% endfor %}";
  EXPECT_EQ(error_of(shared), "");
  for (const char* use : {"{{ ns.x }}", "{{ ns.x|tojson }}", "{{ ns.x|pprint }}", "{{ ns.x|string|length }}"}) {
    expect_quick_error(shared + use, "");
  }
  expect_error(
      shared +
          "{% set other = namespace(x=[1]) %}{% for i in range(60) %}{% set other.x = [other.x, other.x] %}{% endfor %}"
          "{{ ns.x == other.x }}",
      "too long");
}

TEST(JinjaLimits, Work) {
  constexpr std::string_view kLong = "runs for too long";
  expect_quick_error("{% for i in range(1000000000) %}{% endfor %}", "range too big");
  expect_quick_error("{% for i in range(100000) %}{% for j in range(100000) %}{% endfor %}{% endfor %}", "");
  expect_quick_error("{% set l = [1] %}{% for i in l %}{% do l.append(1) %}{% endfor %}", "");
  expect_quick_error(
      "{% set l = [1] * 1000 %}{% for a in l %}{% for b in l %}{% for c in l %}{% endfor %}{% endfor %}{% endfor %}",
      kLong);
  expect_quick_error("{% set s = 'a' * 6000000 %}{% for i in range(100000) %}{{ 'b' in s }}{% endfor %}", kLong);
  expect_quick_error(
      "{% set s = 'a' * 3000000 %}{% set t = 'a' * 100000 ~ 'b' %}{% for i in range(100000) %}"
      "{{ s.find(t) }}{{ s.rfind(t) }}{{ s.count(t) }}{{ s.replace(t, '') == s }}{% endfor %}",
      kLong);
  expect_quick_error(
      "{% set s = 'ab' * 1000000 %}{% for i in range(1000) %}{{ s.strip('ba' * 1000000)|length }}{% endfor %}", kLong);
  expect_quick_error("{% macro m(n) %}{% if n %}{{ m(n - 1) }}{{ m(n - 1) }}{% endif %}{% endmacro %}{{ m(60) }}",
                     kLong);
  expect_quick_error("{{ []|slice(1000000000)|list }}", "");
  expect_quick_error("{{ [1]|batch(1000000000, 0)|list }}", "");
  expect_quick_error("{{ [0] * 1000000000 }}", kLong);
}

TEST(JinjaLimits, TextThatIsLookedAtByCharacters) {
  // 4 MB of it may be looked at four times within the quick limits.
  for (const char* use : {"s|upper", "s|lower", "s|title", "s|capitalize", "s.swapcase()", "s.casefold()", "s|reverse",
                          "s[::-1]", "s|wordcount", "s|striptags", "s|int", "s|float", "s.isidentifier()",
                          "s.isprintable()", "s.isalpha()", "s.isupper()", "s is upper", "s.istitle()"}) {
    expect_quick_error(
        std::string("{% set s = 'AÉ' * 1000000 %}{% for i in range(6) %}{% set x = ") + use + " %}{% endfor %}",
        "runs for too long");
  }
  // An end that never comes is looked for once.
  EXPECT_EQ(
      ChatTemplate::parse("{{ ('<' * 3000000)|striptags|length }}{{ ('<!--' * 700000)|striptags|length }}", kQuick)
          ->render({}),
      "30000002800000");
  // A long word is cut without moving what is left of it.
  EXPECT_EQ(ChatTemplate::parse("{{ ('ж' * 800000)|wordwrap(2)|length }}", kQuick)->render({}), "1199999");
}

TEST(JinjaLimits, TextAndMemory) {
  constexpr std::string_view kText = "text longer than the limit";
  expect_quick_error("{{ 'x' * 1000000000 }}", kText);
  expect_quick_error("{{ 'x' * 9223372036854775807 }}", kText);
  expect_quick_error("{% set ns = namespace(s='x') %}{% for i in range(100) %}{% set ns.s = ns.s + ns.s %}{% endfor %}",
                     kText);
  expect_quick_error("{% set ns = namespace(s='x') %}{% for i in range(100) %}{% set ns.s = ns.s ~ ns.s %}{% endfor %}",
                     kText);
  expect_quick_error(
      "{% set ns = namespace(s='x') %}{% for i in range(100) %}{% set ns.s = ns.s|replace('x', 'xx') %}{% endfor %}",
      "");
  expect_quick_error("{% set s = 'x' * 100000 %}{{ s.replace('x', s) }}", kText);
  expect_quick_error("{% set s = 'x' * 100000 %}{{ s.replace('', s) }}", kText);
  expect_quick_error("{% set s = 'x' * 1000000 %}{{ ([s] * 100)|join }}", kText);
  expect_quick_error("{% set s = 'x' * 1000000 %}{{ ([''] * 100)|join(s) }}", kText);
  expect_quick_error("{% set s = 'x' * 1000000 %}{{ s.join([''] * 100) }}", kText);
  expect_quick_error("{% set s = '\n' * 1000 %}{{ s|indent(1000000, blank=true) }}", kText);
  expect_quick_error("{{ 'x'|indent(1000000000, true) }}", kText);
  expect_quick_error("{{ 'x'|center(1000000000) }}", kText);
  expect_quick_error("{{ 'x'.rjust(1000000000) }}", kText);
  expect_quick_error("{{ 'x'.zfill(1000000000) }}", kText);
  expect_quick_error("{{ '\t'.expandtabs(1000000000) }}", kText);
  expect_quick_error("{{ '%1000000000d' % 1 }}", kText);
  expect_quick_error("{{ '%.1000000000f' % 1 }}", "precision");
  expect_quick_error("{{ '{:1000000000}'.format(1) }}", kText);
  expect_quick_error("{{ '{:{}}'.format(1, 1000000000) }}", kText);
  expect_quick_error("{{ [[1] * 10] * 10000|tojson(indent=100000) }}", "");
  expect_quick_error("{{ [[1] * 10]|tojson(indent=1000000000) }}", kText);
  expect_quick_error("{{ ('&' * 6000000)|e }}", kText);
  expect_quick_error("{{ ('&' * 6000000)|urlencode }}", kText);
  expect_quick_error("{% for i in range(100000) %}{{ 'x' * 1000 }}{% endfor %}", kText);
  expect_quick_error("{% set x %}{% for i in range(100000) %}{{ 'x' * 1000 }}{% endfor %}{% endset %}", kText);
  expect_quick_error("{% set l = [] %}{% for i in range(100000) %}{% do l.append('x' * 100000) %}{% endfor %}",
                     "take more than");
  expect_quick_error("{% set ns = namespace(l=[1]) %}{% for i in range(100) %}{% set ns.l = ns.l + ns.l %}{% endfor %}",
                     "");
  expect_quick_error("{{ 'x' * 100000 * 60 ~ 'y' * 6000000 }}", kText);
  expect_quick_error("{{ ('a,' * 3000000).split(',') }}", "take more than");
  expect_quick_error("{{ ('a,' * 3000000).rsplit(',') }}", "take more than");
  expect_quick_error("{{ ('a ' * 3000000).split() }}", "take more than");
  expect_quick_error("{{ ('a ' * 3000000).rsplit() }}", "take more than");
  expect_quick_error("{{ ('\n' * 6000000).splitlines() }}", "take more than");
  expect_quick_error("{{ ('\n' * 6000000)|indent }}", "take more than");
  expect_quick_error("{{ ('a' * 6000000)|list }}", "take more than");
  EXPECT_EQ(error_of("{% for i in range(500) %}{% set x = 'x' * 100000 %}{% endfor %}", kQuick), "");
}

TEST(JinjaLimits, SmallLimitsHold) {
  const TemplateLimits small{.steps = 1000, .output_bytes = 100, .depth = 10, .memory_bytes = 10'000};
  EXPECT_EQ(error_of("{% for i in range(10) %}{{ i }}{% endfor %}", small), "");
  EXPECT_NE(error_of("{% for i in range(1000) %}{% endfor %}", small), "");
  EXPECT_NE(error_of("{{ 'x' * 101 }}", small), "");
  EXPECT_EQ(error_of("{{ 'x' * 100 }}", small), "");
  EXPECT_NE(error_of("{{ ((((((((((1)))))))))) }}", small), "");
  EXPECT_NE(error_of("{{ [[1, 2, 3, 4, 5, 6, 7, 8, 9, 10] * 10] * 10 }}", small), "");
  // The render ends where it fails; the template is as good as before.
  const auto parsed = ChatTemplate::parse("{% for i in range(n) %}{{ i }}{% endfor %}", small);
  for (int i = 0; i < 3; ++i) {
    EXPECT_THROW(parsed->render({{"n", 1000}}), TemplateError);
    EXPECT_EQ(parsed->render({{"n", 3}}), "012");
  }
}

TEST(JinjaLimits, ErrorsNameTheLine) {
  EXPECT_EQ(error_of("a\n\n{{ x.y }}"), "chat template, line 3: 'x' is undefined");
  EXPECT_EQ(error_of("a\n{% if 1 %}\nb"),
            "chat template, line 3: unexpected end of template, 'elif' or 'else' or 'endif' is missing");
  EXPECT_EQ(error_of("{{ 1 }}\n{{ {}\n.x\n.y }}"), "chat template, line 4: 'dict object' has no attribute 'x'");
  EXPECT_EQ(error_of("\n{# \n #}\n{{ 'ab' + 1 }}"),
            "chat template, line 4: can only concatenate str (not \"int\") to str");
  EXPECT_EQ(error_of("{% macro m() %}\n{{ 1 / 0 }}\n{% endmacro %}\n\n{{ m() }}"),
            "chat template, line 2: division by zero");
  EXPECT_EQ(error_of("{% macro m() %}\n\n{% endmacro %}\n{{ m() ~ (1 / 0) }}"),
            "chat template, line 4: division by zero");
  EXPECT_EQ(error_of("\n{{ raise_exception('no \\'tools\\'') }}"), "chat template, line 2: no 'tools'");
  EXPECT_EQ(error_of("\n{{ nil|nosuch }}"), "chat template, line 2: no filter named 'nosuch'");
  EXPECT_EQ(error_of("\n{{ 99999999999999999999 }}"),
            "chat template, line 2: the integer 99999999999999999999 does not fit into 64 bits");
  EXPECT_EQ(error_of("{{ 9223372036854775807 + 1 }}"), "chat template, line 1: integer overflow in '+'");
  EXPECT_EQ(error_of("{{ '\xff' }}"), "chat template, line 1: the template is not valid UTF-8");
}

TEST(JinjaLimits, ErrorsAreShortAndValid) {
  EXPECT_LT(error_of("{{ raise_exception('ü' * 1000000) }}").size(), 3000u);
  EXPECT_EQ(error_of("{{ '%ü' % 1 }}"), "chat template, line 1: unsupported format character '?'");
}

TEST(JinjaLimits, OverflowIsAnError) {
  const char* kMin = "(-9223372036854775807 - 1)";
  for (const std::string& expression :
       {std::string("9223372036854775807 + 1"), "0 - " + std::string(kMin), std::string(kMin) + " - 1",
        "-" + std::string(kMin), std::string(kMin) + " // -1", std::string(kMin) + "|abs",
        std::string("3037000500 * 3037000500"), std::string("2 ** 63"), std::string("10 ** 100"),
        std::string("'99999999999999999999'|int"), std::string("1e30|int"),
        std::string("range(0, 9223372036854775807, 9223372036854775806)[0:]"),
        std::string("9223372036854775807|round(-19)"), std::string("[9223372036854775807, 1]|sum"),
        std::string("9223372036854775807|round(-1)")}) {
    EXPECT_NE(error_of("{{ " + expression + " }}"), "") << expression;
  }
  EXPECT_EQ(ChatTemplate::parse("{{ (-9223372036854775807 - 1) % -1 }}")->render({}), "0");
  EXPECT_EQ(ChatTemplate::parse("{{ -9223372036854775807 - 1 }}")->render({}), "-9223372036854775808");
}

TEST(JinjaLimits, VariablesAreChecked) {
  const auto parsed = ChatTemplate::parse("{{ x }}");
  EXPECT_THROW(parsed->render({{"x", "\xff\xfe"}}), TemplateError);
  EXPECT_THROW(parsed->render({{"x", uint64_t{1} << 63}}), TemplateError);
  EXPECT_EQ(parsed->render({{"unused", "\xff\xfe"}}), "");
  boost::json::value deep = 1;
  for (int i = 0; i < 1000; ++i) deep = boost::json::array{deep};
  EXPECT_THROW(parsed->render({{"x", deep}}), TemplateError);
  EXPECT_THROW(parsed->render({{"now", "yesterday"}}), TemplateError);
  EXPECT_THROW(parsed->render({{"now", 5}}), TemplateError);
}

TEST(JinjaLimits, OneTemplateManyThreads) {
  const auto parsed = ChatTemplate::parse(
      "{% set ns = namespace(s='') %}{% for m in messages %}{% set ns.s = ns.s ~ 'constant' ~ m.content|upper ~ "
      "q.r|default('x') %}"
      "{% endfor %}{{ ns.s }}");
  std::vector<std::thread> threads;
  std::vector<std::string> results(4);
  for (size_t t = 0; t < results.size(); ++t) {
    threads.emplace_back([&, t] {
      boost::json::array messages;
      for (int i = 0; i < 20; ++i)
        messages.push_back(boost::json::object{{"content", std::string(1, static_cast<char>('a' + t))}});
      for (int i = 0; i < 50; ++i) results[t] = parsed->render({{"messages", messages}, {"q", boost::json::object()}});
    });
  }
  for (auto& thread : threads) thread.join();
  for (size_t t = 0; t < results.size(); ++t) {
    EXPECT_EQ(results[t], repeat("constant" + std::string(1, static_cast<char>('A' + t)) + "x", 20));
  }
}

}  // namespace
}  // namespace ellm::format
