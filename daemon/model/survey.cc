// See survey.h.
#include "daemon/model/survey.h"

#include "daemon/format/chat_template.h"
#include "daemon/format/inspect.h"
#include "daemon/format/tokenizer.h"
#include "daemon/model/architectures.h"
#include "daemon/model/config.h"
#include "kernels/panel.h"

namespace ellm::model {
namespace {

/// The message without the file's name in front, which who asks knows.
std::string reason(const format::Gguf& file, const std::runtime_error& error) {
  const std::string text = error.what(), prefix = file.path() + ": ";
  return text.starts_with(prefix) ? text.substr(prefix.size()) : text;
}

std::vector<std::string> unsupported_types(const format::Gguf& file) {
  std::vector<std::string> problems;
  for (const format::TypeShare& share : format::weight_types(file))
    if (!weight_type(*share.type))
      problems.push_back("weight type " + std::string(share.type->name) + ": not supported (" +
                         std::to_string(share.tensors) + (share.tensors == 1 ? " tensor)" : " tensors)"));
  return problems;
}

}  // namespace

uint64_t repacked_bytes(const format::Gguf& file) {
  uint64_t bytes = 0;
  for (const format::Tensor& tensor : file.tensors()) {
    if (tensor.dims.size() < 2 || tensor.rows() == 1) continue;  // vectors are kept beside
    const auto type = weight_type(*tensor.type);
    if (!type) {
      bytes += tensor.data.size();
      continue;
    }
    // A matrix, or several of one shape: experts.
    const uint64_t panels = (tensor.dims[1] + kernels::kPanelRows - 1) / kernels::kPanelRows;
    bytes +=
        tensor.rows() / tensor.dims[1] * panels * kernels::panel_bytes(*type, static_cast<uint32_t>(tensor.dims[0]));
  }
  return bytes;
}

std::vector<std::string> find_unsupported(const format::Gguf& file) {
  std::vector<std::string> problems = unsupported_types(file);
  try {
    const std::string_view name = file.find_string("general.architecture").value_or("");
    if (!find_architecture(name))
      problems.insert(problems.begin(),
                      "architecture " + format::quoted(name) + ": not supported (" + architecture_names() + " are)");
    else if (problems.empty()) read_config(file);
  } catch (const format::FormatError& error) {
    problems.push_back(reason(file, error));
  }
  try {
    format::Tokenizer::open(file);
  } catch (const format::FormatError& error) {
    problems.push_back("tokenizer: " + reason(file, error));
  }
  try {
    if (file.find("tokenizer.chat_template")) format::ChatTemplate::parse(file.get_string("tokenizer.chat_template"));
  } catch (const std::runtime_error& error) {  // FormatError, TemplateError
    problems.push_back(reason(file, error));
  }
  return problems;
}

}  // namespace ellm::model
