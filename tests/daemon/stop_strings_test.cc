// Stop strings against a search over the whole text, for every way to cut it.
#include "daemon/stop_strings.h"

#include <gtest/gtest.h>

#include <random>

namespace ellm::daemon {
namespace {

/// What is shown of `text`, by brute force: the stop string that ends first, of those the longest.
std::string shown(const std::string& text, const std::vector<std::string>& stops, bool& stopped) {
  for (size_t end = 1; end <= text.size(); ++end) {
    size_t longest = 0;
    for (const auto& stop : stops) {
      if (stop.size() <= end && text.compare(end - stop.size(), stop.size(), stop) == 0)
        longest = std::max(longest, stop.size());
    }
    if (longest != 0) {
      stopped = true;
      return text.substr(0, end - longest);
    }
  }
  stopped = false;
  return text;
}

TEST(StopFinder, EveryCutOfRandomTextsGivesTheSame) {
  std::mt19937 random(1);
  const auto word = [&](size_t most) {
    std::string text(1 + random() % most, 'a');
    for (char& c : text) c = static_cast<char>('a' + random() % 2);
    return text;
  };
  int stops_found = 0;
  for (int round = 0; round < 4000; ++round) {
    std::vector<std::string> stops(1 + random() % 3);
    for (auto& stop : stops) stop = word(6);
    const std::string text = word(24);
    bool expected_stop = false;
    const std::string expected = shown(text, stops, expected_stop);
    StopFinder finder(stops);
    std::string got;
    bool stopped = false;
    for (size_t at = 0; at < text.size() && !stopped;) {
      const size_t n = std::min<size_t>(1 + random() % 5, text.size() - at);
      const auto piece = finder.push(text.substr(at, n));
      got += piece.text;
      stopped = piece.stopped;
      at += n;
    }
    if (!stopped) got += finder.finish();
    ASSERT_EQ(got, expected) << text;
    ASSERT_EQ(stopped, expected_stop);
    stops_found += stopped;
  }
  EXPECT_GT(stops_found, 1000);
}

TEST(StopFinder, HoldsBackNoMoreThanItMust) {
  StopFinder finder({"###", "\nUser:"});
  EXPECT_EQ(finder.push("Hello").text, "Hello");
  EXPECT_EQ(finder.push(" #").text, " ");
  EXPECT_EQ(finder.push("1 is\nUse").text, "#1 is");
  EXPECT_EQ(finder.push("d\n").text, "\nUsed");
  EXPECT_EQ(finder.finish(), "\n");
}

TEST(StopFinder, WithoutStopStringsNothingIsHeld) {
  StopFinder finder({});
  EXPECT_EQ(finder.push("abc").text, "abc");
  EXPECT_EQ(finder.finish(), "");
}

}  // namespace
}  // namespace ellm::daemon
