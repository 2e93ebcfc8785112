// What the kernel says of a mapping of this process.
#pragma once
#include <cstdint>
#include <cstdio>
#include <fstream>
#include <string>

namespace ellm::tests {

/// The value of a field of /proc/self/smaps ("VmFlags"), a space behind it, for the mapping that holds `address`;
/// empty: there is none.
inline std::string smaps(const void* address, const std::string& field) {
  std::ifstream in("/proc/self/smaps");
  const auto wanted = reinterpret_cast<uintptr_t>(address);
  bool inside = false;
  for (std::string line; std::getline(in, line);) {
    unsigned long first, last;
    if (std::sscanf(line.c_str(), "%lx-%lx ", &first, &last) == 2) inside = first <= wanted && wanted < last;
    else if (inside && line.rfind(field + ":", 0) == 0) return line.substr(field.size() + 1) + " ";
  }
  return "";
}

}  // namespace ellm::tests
