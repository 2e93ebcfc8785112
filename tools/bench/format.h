// printf into a string, for the tables of a report: at most 511 bytes.
#pragma once
#include <cstdio>
#include <string>

namespace ellm::bench {

template <typename... Args>
std::string format(const char* form, Args... args) {
  char text[512];
  std::snprintf(text, sizeof text, form, args...);
  return text;
}

}  // namespace ellm::bench
