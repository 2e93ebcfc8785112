#include "tools/bench/work.h"

#include <stdexcept>

namespace ellm::bench {

std::string Work::name() const {
  std::string text = kind == Kind::prefill  ? "prefill " + std::to_string(prompt)
                     : kind == Kind::decode ? "decode " + std::to_string(generate)
                                            : "end to end " + std::to_string(prompt) + "+" + std::to_string(generate);
  if (batch > 1) text += " x" + std::to_string(batch);
  if (depth > 0) text += " @" + std::to_string(depth);
  return shared ? text + " shared" : text;
}

uint64_t Work::tokens() const { return uint64_t{kind == Kind::prefill ? prompt : generate} * batch; }

uint32_t Work::steps() const {
  const uint32_t rows = kind == Kind::decode ? 0 : batch * prompt;
  return (rows + kPrefillRows - 1) / kPrefillRows + (kind == Kind::prefill ? 0 : generate);
}

std::vector<Work> work_set(const std::string& name) {
  const Work prefill512{Kind::prefill, 512}, decode{Kind::decode, 0, 32};
  if (name == "quick") return {prefill512, decode, {Kind::decode, 0, 8, 512, 8}};
  const std::vector<Work> depth = {
      {Kind::decode, 0, 16, 8192}, {Kind::decode, 0, 8, 32768}, {Kind::prefill, 256, 0, 32768}};
  if (name == "depth") return depth;
  const std::vector<Work> batch = {{Kind::decode, 0, 16, 512, 8}, {Kind::decode, 0, 16, 512, 32}};
  if (name == "batch") return batch;
  if (name == "cost") {  // the last: so that the context is 32K at the end
    std::vector<Work> all;
    for (uint32_t b = 1; b <= 32; b *= 2) all.push_back({Kind::end_to_end, 2048, 512, 0, b});
    for (uint32_t b = 1; b <= 32; b *= 2) all.push_back({Kind::end_to_end, 2048, 512, 32768 - 2048 - 512, b});
    return all;
  }
  if (name == "reach") {
    std::vector<Work> all = {prefill512, {Kind::prefill, 2048}, decode};
    all.insert(all.end(), batch.begin(), batch.end());
    all.insert(all.end(), depth.begin(), depth.end());
    return all;
  }
  std::string names;
  for (const char* known : kWorkSets) names += (names.empty() ? "" : ", ") + std::string(known);
  throw std::runtime_error("no set of work is called '" + name + "'; there are " + names);
}

}  // namespace ellm::bench
