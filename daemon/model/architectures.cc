// The table. Rows are defined in architecture_NAME.cc.
#include "daemon/model/architectures.h"

// One line per architecture, in alphabetical order.
#define ELLM_ARCHITECTURES(row) \
  row(gemma2) row(gemma3) row(llama) row(phi3) row(qwen2) row(qwen2moe) row(qwen3) row(qwen3moe)

namespace ellm::model {

namespace architectures {
#define ELLM_DECLARE(name) extern const Architecture name;
ELLM_ARCHITECTURES(ELLM_DECLARE)
#undef ELLM_DECLARE
}  // namespace architectures

namespace {
#define ELLM_ADDRESS(name) &architectures::name,
constexpr const Architecture* kTable[] = {ELLM_ARCHITECTURES(ELLM_ADDRESS)};
#undef ELLM_ADDRESS
}  // namespace

const Architecture* find_architecture(std::string_view name) {
  for (const Architecture* row : kTable)
    if (name == row->name) return row;
  return nullptr;
}

std::string architecture_names() {
  std::string names;
  for (const Architecture* row : kTable) names += (names.empty() ? "" : ", ") + std::string(row->name);
  return names;
}

}  // namespace ellm::model
