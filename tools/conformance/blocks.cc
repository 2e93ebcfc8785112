// Quantised blocks as llama.cpp wrote them, dequantised by it and by us: equal to the last bit.
#include "kernels/blocks.h"

#include <cstring>
#include <set>

#include "daemon/format/gguf.h"
#include "daemon/model/config.h"
#include "tools/conformance/report.h"

namespace ellm::conformance {
namespace {

constexpr size_t kValues = 1024;

/// Files with these are refused by name.
const std::set<std::string> kLeftOut = {"IQ2_XXS", "IQ2_XS", "IQ3_XXS", "IQ1_S", "IQ3_S", "IQ2_S",
                                        "IQ1_M",   "TQ1_0",  "TQ2_0",   "NVFP4", "Q1_0",  "Q2_0"};

}  // namespace

std::vector<Line> block_lines(const Options& options) {
  const std::string bytes = read_file(options.data + "/reference/quant_vectors.bin");
  std::vector<Line> lines;
  size_t at = kValues * sizeof(float);  // behind the inputs
  while (at + 8 <= bytes.size()) {
    int32_t head[2];  // type, bytes
    std::memcpy(head, bytes.data() + at, sizeof head);
    const char* blocks = bytes.data() + at + sizeof head;
    const char* expected = blocks + head[1];
    at += sizeof head + static_cast<size_t>(head[1]) + kValues * sizeof(float);
    const format::TensorType* type = format::find_tensor_type(static_cast<uint32_t>(head[0]));
    Line line{"blocks", type ? type->name : "type " + std::to_string(head[0])};
    const auto weights = type ? model::weight_type(*type) : std::nullopt;
    if (weights && at <= bytes.size()) {
      float ours[kValues];
      kernels::dequantize(*weights, reinterpret_cast<const std::byte*>(blocks), kValues, ours);
      for (size_t i = 0; i < kValues; ++i)
        line.count(std::memcmp(ours + i, expected + i * sizeof(float), sizeof(float)) == 0,
                   "value " + std::to_string(i));
    } else if (type && kLeftOut.contains(type->name)) {
      line.leave_out("not among the types that eLLM reads (README.md); refused by name", kValues);
    } else {
      line.fail("not supported");
    }
    lines.push_back(std::move(line));
  }
  return lines;
}

}  // namespace ellm::conformance
