// The reference texts by their short names, from the byte where the references begin.
#pragma once
#include <cstdio>
#include <map>
#include <stdexcept>
#include <string>

namespace ellm::tests {

/// The whole output of a shell command.
inline std::string output_of(const std::string& command) {
  FILE* pipe = ::popen(command.c_str(), "r");
  if (pipe == nullptr) throw std::runtime_error("cannot run " + command);
  std::string out;
  char block[65536];
  for (size_t n; (n = std::fread(block, 1, sizeof block, pipe)) > 0;) out.append(block, n);
  if (::pclose(pipe) != 0) throw std::runtime_error("failed: " + command);
  return out;
}

/// 16,000 bytes of "kjv", "policy" or "ja", cut at a line's end.
inline std::string reference_text(const std::string& data, const std::string& name) {
  static const std::map<std::string, std::pair<const char*, size_t>> texts = {
      {"kjv", {"kjv.txt.gz", 0}},
      {"policy", {"debian-policy.txt.gz", 24862}},
      {"ja", {"debian-reference.ja.txt.gz", 159353}}};
  const auto& [file, offset] = texts.at(name);
  const std::string text = output_of("gzip -dc '" + data + "/text/" + file + "'").substr(offset, 16000);
  return text.substr(0, text.rfind('\n'));
}

}  // namespace ellm::tests
