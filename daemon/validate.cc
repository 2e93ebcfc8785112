// See validate.h.
#include "daemon/validate.h"

#include <cmath>
#include <cstdio>

#include "client/utf8.h"

namespace ellm::daemon {
namespace {

constexpr size_t kMostStops = 64, kLongestStop = 1024, kMostBiases = 65536, kMostMessages = 65536;

std::string print(double value) {
  char text[40];
  std::snprintf(text, sizeof text, "%.9g", value);
  return text;
}

/// NaN is outside of every range.
std::optional<std::string> outside(const char* field, double value, double least, double most, bool least_too = true) {
  const bool above = least_too ? value >= least : value > least;
  if (above && value <= most) return std::nullopt;
  return std::string(field) + " is " + print(value) + "; allowed is " + (least_too ? "" : "more than ") + print(least) +
         " to " + print(most);
}

std::optional<std::string> too_many(const std::string& field, size_t value, size_t most) {
  if (value <= most) return std::nullopt;
  return field + " is " + std::to_string(value) + "; allowed is 0 to " + std::to_string(most);
}

std::optional<std::string> stop_fault(const std::vector<std::string>& stops) {
  for (size_t i = 0; i < stops.size(); ++i) {
    const std::string field = "stop[" + std::to_string(i) + "]";
    if (stops[i].empty()) return field + " is empty";
    if (auto fault = utf8_fault(field, stops[i])) return fault;
  }
  return std::nullopt;
}

std::optional<std::string> bias_fault(const std::vector<std::pair<uint32_t, float>>& biases, uint32_t vocabulary) {
  for (const auto& [token, bias] : biases) {
    const std::string field = "logit_bias of token " + std::to_string(token);
    if (auto fault = outside(field.c_str(), bias, -100, 100)) return fault;
    if (vocabulary != 0 && token >= vocabulary) {
      return field + ": the vocabulary has " + std::to_string(vocabulary) + " tokens";
    }
  }
  return std::nullopt;
}

/// The first of several checks that fails.
template <class... Checks>
std::optional<std::string> first(Checks&&... checks) {
  std::optional<std::string> fault;
  (void)((fault = checks(), fault.has_value()) || ...);
  return fault;
}

}  // namespace

std::optional<std::string> size_fault(const client::Sampling& s) {
  if (s.stop.size() > kMostStops)
    return "stop has " + std::to_string(s.stop.size()) + " strings; allowed are " + std::to_string(kMostStops);
  for (size_t i = 0; i < s.stop.size(); ++i) {
    if (s.stop[i].size() <= kLongestStop) continue;
    return "stop[" + std::to_string(i) + "] has " + std::to_string(s.stop[i].size()) + " bytes; allowed are " +
           std::to_string(kLongestStop);
  }
  if (s.logit_bias.size() <= kMostBiases) return std::nullopt;
  return "logit_bias has " + std::to_string(s.logit_bias.size()) + " entries; allowed are " +
         std::to_string(kMostBiases);
}

std::optional<std::string> fault_of(const client::Sampling& s, uint32_t vocabulary) {
  return first([&] { return outside("temperature", s.temperature, 0, 100); },
               [&] { return outside("top_p", s.top_p, 0, 1, false); }, [&] { return outside("min_p", s.min_p, 0, 1); },
               [&] { return outside("repetition_penalty", s.repetition_penalty, 0, 100, false); },
               [&] { return outside("presence_penalty", s.presence_penalty, -100, 100); },
               [&] { return outside("frequency_penalty", s.frequency_penalty, -100, 100); },
               [&] { return too_many("logprobs", s.logprobs, kMostLogprobs); }, [&] { return size_fault(s); },
               [&] { return stop_fault(s.stop); }, [&] { return bias_fault(s.logit_bias, vocabulary); });
}

std::optional<std::string> utf8_fault(const std::string& field, const std::string& text) {
  const size_t good = client::utf8_length(text);
  if (good == text.size()) return std::nullopt;
  return field + ": invalid UTF-8 at byte " + std::to_string(good);
}

std::optional<std::string> text_fault(const client::Generate& r) {
  return first([&] { return utf8_fault("model", r.model); }, [&] { return utf8_fault("prompt", r.prompt); });
}

std::optional<std::string> text_fault(const client::Chat& r) {
  if (r.messages.size() > kMostMessages) {
    return "messages: there are " + std::to_string(r.messages.size()) + "; allowed are " +
           std::to_string(kMostMessages);
  }
  for (size_t i = 0; i < r.messages.size(); ++i) {
    const std::string field = "messages[" + std::to_string(i) + "].";
    const auto& m = r.messages[i];
    if (auto fault = first([&] { return utf8_fault(field + "role", m.role); },
                           [&] { return utf8_fault(field + "content", m.content); },
                           [&] { return utf8_fault(field + "extra", m.extra); })) {
      return fault;
    }
  }
  return first([&] { return utf8_fault("model", r.model); }, [&] { return utf8_fault("tools", r.tools); },
               [&] { return utf8_fault("variables", r.variables); });
}

std::optional<std::string> text_fault(const client::Score& r) {
  return first([&] { return utf8_fault("model", r.model); }, [&] { return utf8_fault("text", r.text); },
               [&] { return too_many("top", r.top, kMostLogprobs); });
}

std::optional<std::string> text_fault(const client::Tokenize& r) {
  return first([&] { return utf8_fault("model", r.model); }, [&] { return utf8_fault("text", r.text); });
}

std::optional<std::string> text_fault(const client::Detokenize& r) { return utf8_fault("model", r.model); }

std::optional<std::string> text_fault(const client::RenderTemplate& r) {
  return first([&] { return utf8_fault("model", r.model); }, [&] { return utf8_fault("variables", r.variables); });
}

}  // namespace ellm::daemon
