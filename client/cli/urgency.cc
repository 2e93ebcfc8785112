// See urgency.h.
#include "client/cli/urgency.h"

#include <charconv>
#include <cmath>
#include <limits>
#include <optional>

namespace ellm::cli {
namespace {

constexpr double kMostSeconds = std::numeric_limits<uint32_t>::max() / 1000;

std::optional<double> seconds_of(const std::string& text) {
  double value = 0;
  const char* end = text.data() + text.size();
  const auto parsed = std::from_chars(text.data(), end, value);
  if (parsed.ec != std::errc() || parsed.ptr != end || !(value > 0 && value <= kMostSeconds)) return std::nullopt;
  return value;
}

std::string seconds_fault(const std::string& text) {
  if (seconds_of(text)) return {};
  return "'" + text + "' is not a number of seconds, more than 0 and at most " +
         std::to_string(static_cast<uint32_t>(kMostSeconds)) + " (without --deadline there is none)";
}

}  // namespace

UrgencyOptions::UrgencyOptions(CommandLine& line, client::Priority usual) : priority_(client::name_of(usual)) {
  const char* const kGroup = "Urgency";
  deadline_given_ = line.app
                        .add_option("--deadline", deadline_,
                                    "End what is not complete after this time, with what there is of it (exit code 75)")
                        ->check(seconds_fault)
                        ->type_name("SECONDS")
                        ->group(kGroup);
  line.app.add_option("--priority", priority_, "interactive requests go before batch requests")
      ->capture_default_str()
      ->check(CLI::IsMember({"interactive", "batch"}))
      ->group(kGroup);
}

uint32_t UrgencyOptions::deadline_ms() const {
  const auto seconds = seconds_of(deadline_);
  return seconds ? static_cast<uint32_t>(std::ceil(*seconds * 1000)) : 0;
}

}  // namespace ellm::cli
