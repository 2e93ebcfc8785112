// Where the real models lie that some tests run on.
#pragma once
#include <cstdlib>
#include <filesystem>
#include <map>
#include <string>

namespace ellm::tests {

/// A real model by its catalogue name ("smollm2") from the places where `ellm pull` and the tests keep them; empty if
/// absent.
inline std::string find_real_model(const std::string& name) {
  static const std::map<std::string, std::string> files = {
      {"smollm2", "SmolLM2-135M-Instruct.Q4_1.gguf"},
      {"qwen-0.5b", "qwen2.5-coder-0.5b-instruct-q4_k_m.gguf"},
      {"qwen-1.5b", "qwen2.5-coder-1.5b-instruct-q4_k_m.gguf"},
      {"gemma3-270m", "gemma-3-270m-q4_k_m.gguf"},
  };
  const auto variable = [](const char* n) {
    const char* v = std::getenv(n);
    return std::string(v == nullptr ? "" : v);
  };
  const std::string home = variable("HOME");
  const std::string data = variable("XDG_DATA_HOME"), cache = variable("XDG_CACHE_HOME");
  for (const std::string& dir :
       {variable("ELLM_TEST_MODELS"), (data.empty() ? home + "/.local/share" : data) + "/ellm/models",
        (cache.empty() ? home + "/.cache" : cache) + "/ellm-test/models", std::string("/var/lib/ellm/models")}) {
    for (const std::string& file : {files.at(name), name + ".gguf"}) {
      if (!dir.empty() && std::filesystem::exists(dir + "/" + file)) return dir + "/" + file;
    }
  }
  return {};
}

}  // namespace ellm::tests
