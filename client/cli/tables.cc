// See tables.h.
#include "client/cli/tables.h"

#include "client/cli/output.h"

namespace ellm::cli {

using client::ModelInfo;
using client::RequestInfo;

std::string or_dash(const std::string& text) { return text.empty() ? "-" : text; }

std::string loaded_table(const std::vector<ModelInfo>& models) {
  std::vector<std::vector<std::string>> rows = {
      {"MODEL", ">MEMORY", "LOCKED", ">CONTEXT", "KV", ">KV TOKENS", ">FREE", ">CACHED"}};
  for (const ModelInfo& model : models)
    rows.push_back({model.name, human_bytes(static_cast<double>(model.resident_bytes)), model.locked ? "yes" : "no",
                    std::to_string(model.context), or_dash(model.kv_type),
                    std::to_string(uint64_t{model.kv_pages} * 32), std::to_string(uint64_t{model.kv_pages_free} * 32),
                    std::to_string(uint64_t{model.kv_pages_cached} * 32)});
  return table(rows);
}

std::string requests_table(const std::vector<RequestInfo>& requests) {
  std::vector<std::vector<std::string>> rows = {{">REQUEST", ">UID", ">PID", "MODEL", "KIND", "CLASS", "STATE",
                                                 ">PROMPT", ">DONE", ">GENERATED", ">AGE", ">DEADLINE", ">PREEMPTED"}};
  for (const RequestInfo& r : requests)
    rows.push_back({std::to_string(r.request), std::to_string(r.uid), std::to_string(r.pid), or_dash(r.model),
                    or_dash(r.kind), name_of(r.priority), or_dash(r.state), std::to_string(r.prompt_tokens),
                    std::to_string(r.done_tokens), std::to_string(r.completion_tokens), human_seconds(r.age_ms / 1000),
                    r.deadline_left_ms == 0 ? "-" : human_seconds(r.deadline_left_ms / 1000),
                    std::to_string(r.preemptions)});
  return table(rows);
}

}  // namespace ellm::cli
