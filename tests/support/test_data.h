// Where the reference data of the tests lies: the folder that $ELLM_TEST_DATA names.
#pragma once
#include <cstdlib>
#include <optional>
#include <string>

namespace ellm::tests {

inline std::optional<std::string> test_data() {
  const char* path = std::getenv("ELLM_TEST_DATA");
  if (!path || !*path) return std::nullopt;
  return std::string(path);
}

}  // namespace ellm::tests
