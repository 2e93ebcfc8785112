// What a loader does with a model file short of the weights: header, configuration, tokenizer, chat template; and a
// little use of each, so that a value that was accepted and should not have been shows itself.
#pragma once
#include <string>
#include <vector>

#include "daemon/format/chat_template.h"
#include "daemon/format/gguf.h"
#include "daemon/format/inspect.h"
#include "daemon/format/tokenizer.h"
#include "daemon/model/config.h"
#include "daemon/model/rope.h"

namespace ellm::tests {

/// Touches the first and the last byte of every tensor.
inline unsigned touch_tensors(const format::Gguf& file) {
  unsigned sum = 0;
  for (const format::Tensor& tensor : file.tensors())
    if (!tensor.data.empty())
      sum += std::to_integer<unsigned>(tensor.data.front()) + std::to_integer<unsigned>(tensor.data.back());
  return sum;
}

inline size_t describe_all(const format::Gguf& file) {
  size_t characters = 0;
  for (const auto& [key, value] : file.values()) characters += format::describe(value).size();
  for (const format::TypeShare& share : format::weight_types(file)) characters += share.bytes;
  return characters + format::parameter_count(file);
}

/// Throws FormatError where the file is to be refused. A chat template that cannot be parsed or rendered is no reason
/// to
/// refuse a model; its outcome is returned: the text, or "error: …", or nothing where there is no template.
inline std::string open_everything(const std::string& path) {
  const auto file = format::Gguf::open(path);
  touch_tensors(*file);
  describe_all(*file);
  const model::ModelConfig config = model::read_config(*file);
  model::make_rope_table(config.rope);
  const auto tokenizer = format::Tokenizer::open(*file);
  const std::vector<format::TokenId> ids = tokenizer->encode("Once upon a time,\n\xff the end\xe2\x82\xac.");
  tokenizer->decode(ids, true);
  for (format::TokenId id = 0; id < tokenizer->vocabulary_size(); id++) tokenizer->piece(id);
  const auto source = file->find_string("tokenizer.chat_template");
  if (!source) return {};
  format::TemplateLimits limits;
  limits.steps = 200'000;
  limits.output_bytes = 1 << 20;
  try {
    return format::ChatTemplate::parse(*source, limits)
        ->render({{"messages", boost::json::array{{{"role", "user"}, {"content", "Hello"}}}}, {"bos_token", "<s>"}});
  } catch (const format::TemplateError& error) {
    return std::string("error: ") + error.what();
  }
}

}  // namespace ellm::tests
