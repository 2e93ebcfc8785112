// Names and defaults as in the protocol; ranges are the daemon's to check.
#include "client/cli/sampling.h"

#include <charconv>
#include <limits>
#include <type_traits>

#include "client/cli/output.h"

namespace ellm::cli {

namespace {

/// CLI11 takes -1 for the largest number, and what is larger for it, too.
template <class Number>
std::string number_fault(const std::string& text) {
  Number value = 0;
  const char* end = text.data() + text.size();
  const auto parsed = std::from_chars(text.data(), end, value);
  if (parsed.ec == std::errc() && parsed.ptr == end) return {};
  return "'" + text + "' is not a number from 0 to " + std::to_string(std::numeric_limits<Number>::max());
}

}  // namespace

SamplingOptions::SamplingOptions(CommandLine& line) : line_(line) {
  CLI::App& app = line.app;
  const char* const kGroup = "Sampling";
  auto number = [&](const char* name, auto& value, const char* description, const char* type) {
    app.add_option(name, value, description)
        ->capture_default_str()
        ->check(number_fault<std::remove_reference_t<decltype(value)>>)
        ->type_name(type)
        ->group(kGroup);
  };
  auto real = [&](const char* name, float& value, const char* description) {
    app.add_option(name, value, description)->default_str(format("%g", value))->type_name("X")->group(kGroup);
  };
  real("-t,--temperature", sampling_.temperature, "0 takes the likeliest token every time");
  number("--top-k", sampling_.top_k, "Only the K likeliest tokens; 0: all", "K");
  real("--top-p", sampling_.top_p, "Only the likeliest tokens that make up this probability");
  real("--min-p", sampling_.min_p, "Only tokens of at least this share of the likeliest one's probability");
  real("--repetition-penalty", sampling_.repetition_penalty, "Divides the logits of tokens seen before");
  real("--presence-penalty", sampling_.presence_penalty, "Taken off a token's logit once it has been generated");
  real("--frequency-penalty", sampling_.frequency_penalty, "Taken off a token's logit for every time it was generated");
  number("--seed", sampling_.seed, "The same seed gives the same answer", "N");
  number("--max-tokens", sampling_.max_tokens, "End after N tokens; 0: when the context is full", "N");
  line.add_list("--stop", sampling_.stop, "End before this text; may be repeated")->type_name("TEXT")->group(kGroup);
  line.add_list("--logit-bias", logit_bias_, "Add VALUE to the logit of token ID; may be repeated")
      ->type_name("ID=VALUE")
      ->group(kGroup);
  app.add_flag("--ignore-eos", sampling_.ignore_eos, "Go on after the model's end of text")->group(kGroup);
}

client::Sampling SamplingOptions::get() const {
  client::Sampling sampling = sampling_;
  for (const std::string& text : logit_bias_) {
    uint32_t id = 0;
    float value = 0;
    const char *begin = text.data(), *end = begin + text.size();
    auto parsed_id = std::from_chars(begin, end, id);
    bool good = parsed_id.ec == std::errc() && parsed_id.ptr != end && *parsed_id.ptr == '=';
    if (good) {
      const char* number = parsed_id.ptr + 1;
      if (number != end && *number == '+') number++;
      auto parsed_value = std::from_chars(number, end, value);
      good = parsed_value.ec == std::errc() && parsed_value.ptr == end;
    }
    if (!good) line_.usage_error("--logit-bias '" + text + "' is not ID=VALUE, such as 42=-100");
    sampling.logit_bias.emplace_back(id, value);
  }
  return sampling;
}

}  // namespace ellm::cli
