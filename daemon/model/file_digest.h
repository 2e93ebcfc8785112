// What a model's files contain, in a few hex digits. Reading gigabytes takes seconds, so the digest of a file is
// remembered beside what tells that it changed.
#pragma once
#include <string>
#include <string_view>
#include <vector>

namespace ellm::model {

/// XXH3-128 of the contents, in order. Remembered in `directory` (made if need be; empty or not writable: not
/// remembered) beside each file's device, inode, size, mtime and ctime. Throws std::system_error where a file cannot be
/// read.
std::string file_digest(const std::vector<std::string>& files, const std::string& directory);

/// What changes when one of the files does: device, inode, size, mtime and ctime. Throws as above.
std::string file_identity(const std::vector<std::string>& files);

/// XXH3-64 of a text, 16 hex digits.
std::string text_digest(std::string_view text);

}  // namespace ellm::model
