// libFuzzer on the template interpreter: any bytes are a template; they render or end in a TemplateError.
#include <boost/json/parse.hpp>
#include <cstddef>
#include <cstdint>
#include <string_view>

#include "daemon/format/chat_template.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* bytes, size_t size) {
  static const boost::json::value variables = boost::json::parse(R"({
    "messages": [{"role": "system", "content": "S"}, {"role": "user", "content": "Grüße 😀"},
                 {"role": "assistant", "content": "", "tool_calls": [{"function": {"name": "f", "arguments": {"x": [1, 2.5, null]}}}]}],
    "tools": [{"type": "function", "function": {"name": "f", "parameters": {"properties": {"x": {"type": "array"}}}}}],
    "add_generation_prompt": true, "bos_token": "<s>", "eos_token": "</s>", "now": "2024-07-26"})");
  const ellm::format::TemplateLimits limits{.steps = 50'000, .output_bytes = 1u << 18, .memory_bytes = 8u << 20};
  try {
    ellm::format::ChatTemplate::parse({reinterpret_cast<const char*>(bytes), size}, limits)
        ->render(variables.as_object());
  } catch (const ellm::format::TemplateError&) {
  }
  return 0;
}
