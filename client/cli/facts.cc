// See facts.h.
#include "client/cli/facts.h"

#include "client/cli/json.h"
#include "client/cli/offline.h"
#include "client/cli/output.h"
#include "daemon/format/inspect.h"
#include "daemon/format/tokenizer.h"
#include "daemon/model/survey.h"

namespace ellm::cli {
namespace {

/// A size under the architecture's name; 0 where it is missing, or no number.
uint64_t size_of(const format::Gguf& file, const std::string& architecture, const char* key) try {
  const format::Value* value = file.find(architecture + "." + key);
  if (!value || value->type == format::ValueType::array) return 0;
  return file.find_uint(architecture + "." + key).value_or(0);
} catch (const format::FormatError&) {
  return 0;  // among what is not supported
}

std::string text_of(const format::Gguf& file, const char* key) try {
  return client::to_utf8(std::string(file.find_string(key).value_or("")));
} catch (const format::FormatError&) {
  return "";
}

std::string describe_tokenizer(const format::Gguf& file) {
  if (!file.find("tokenizer.ggml.model")) return "";
  try {
    auto tokenizer = format::Tokenizer::open(file);
    return format("%s, %u tokens", tokenizer->description().c_str(), tokenizer->vocabulary_size());
  } catch (const format::FormatError& error) {
    return std::string("not usable: ") + error.what();
  }
}

/// Whether there is a chat template, and what people look for in it.
std::string describe_template(const format::Gguf& file) {
  if (!file.find("tokenizer.chat_template")) return "no";
  const std::string source = text_of(file, "tokenizer.chat_template");
  std::string uses;
  for (const char* variable : {"tools", "enable_thinking"})
    if (source.find(variable) != std::string::npos) uses += (uses.empty() ? "" : ", ") + std::string(variable);
  return uses.empty() ? "yes" : "yes (" + uses + ")";
}

/// Largest first: "Q4_K 78.1 % (120 tensors), …"
std::string weights_text(const format::Gguf& file) {
  const auto shares = format::weight_types(file);
  double total = 0;
  for (const auto& share : shares) total += static_cast<double>(share.bytes);
  std::string text;
  for (const auto& share : shares)
    text += format("%s%s %.1f %% (%ju tensor%s)", text.empty() ? "" : ", ", share.type->name,
                   100 * static_cast<double>(share.bytes) / total, static_cast<uintmax_t>(share.tensors),
                   share.tensors == 1 ? "" : "s");
  return text;
}

boost::json::array shares_json(const format::Gguf& file) {
  boost::json::array list;
  for (const auto& share : format::weight_types(file))
    list.push_back(boost::json::object{{"type", share.type->name},
                                       {"tensors", share.tensors},
                                       {"parameters", share.parameters},
                                       {"bytes", share.bytes}});
  return list;
}

/// What computes a token: of the experts, those that are used.
uint64_t active_parameters(const Facts& facts) {
  const uint64_t all = format::parameter_count(*facts.file);
  if (!facts.experts || facts.experts_used > facts.experts) return all;
  uint64_t of_experts = 0;
  for (const format::Tensor& tensor : facts.file->tensors())
    if (tensor.name.find("_exps.") != std::string::npos) of_experts += tensor.elements();
  return all - of_experts / facts.experts * (facts.experts - facts.experts_used);
}

std::string kv_text(const Facts& facts) {
  std::string text;
  for (shm::KvType type : shm::kKvTypes)
    text += format("%s%s as %s", text.empty() ? "" : ", ", human_bytes(1024 * facts.kv_bytes_per_token(type)).c_str(),
                   shm::name_of(type));
  return text;
}

std::string details_text(const format::Gguf& file, bool keys, bool tensors) {
  std::string text;
  if (keys) {
    text += "\n";
    for (const auto& [key, value] : file.values()) text += visible(key + " = " + format::describe(value)) + "\n";
  }
  if (tensors) {
    text += "\n";
    std::vector<std::vector<std::string>> rows = {{"TENSOR", "TYPE", "SHAPE"}};
    for (const format::Tensor& tensor : file.tensors()) {
      std::string shape;
      for (uint64_t dim : tensor.dims) shape += (shape.empty() ? "" : " x ") + std::to_string(dim);
      rows.push_back({tensor.name, tensor.type->name, shape});
    }
    text += table(rows);
  }
  return text;
}

}  // namespace

bool Facts::has_geometry() const {
  return layers && kv_heads && head_dim && layers < 1 << 16 && kv_heads < 1 << 16 && head_dim < 1 << 16;
}

double Facts::kv_bytes_per_token(shm::KvType type) const {
  shm::PageGeometry geometry{static_cast<uint32_t>(layers), static_cast<uint32_t>(kv_heads),
                             static_cast<uint32_t>(head_dim), type, type};
  return static_cast<double>(geometry.page_bytes()) / shm::kPageTokens;
}

Facts read_facts(const std::string& path) {
  Facts facts;
  facts.file = open_model(path);
  const format::Gguf& file = *facts.file;
  facts.architecture = text_of(file, "general.architecture");
  auto size = [&](const char* key) { return size_of(file, facts.architecture, key); };
  facts.layers = size("block_count");
  facts.heads = size("attention.head_count");
  facts.kv_heads = size("attention.head_count_kv");
  if (!facts.kv_heads) facts.kv_heads = facts.heads;
  facts.embedding = size("embedding_length");
  facts.head_dim = size("attention.key_length");
  if (!facts.head_dim && facts.heads) facts.head_dim = facts.embedding / facts.heads;
  facts.context = size("context_length");
  facts.experts = size("expert_count");
  facts.experts_used = size("expert_used_count");
  facts.tokenizer = describe_tokenizer(file);
  facts.chat_template = describe_template(file);
  facts.weight_bytes = model::repacked_bytes(file);
  facts.unsupported = model::find_unsupported(file);
  return facts;
}

boost::json::object facts_json(const Facts& facts, bool keys, bool tensors) {
  const format::Gguf& file = *facts.file;
  boost::json::object object{{"path", file.path()},
                             {"gguf_version", file.version()},
                             {"file_bytes", file.file_bytes()},
                             {"name", text_of(file, "general.name")},
                             {"architecture", facts.architecture},
                             {"parameters", format::parameter_count(file)},
                             {"active_parameters", active_parameters(facts)},
                             {"weight_types", format::describe_weight_types(file)},
                             {"weights", shares_json(file)},
                             {"weight_memory_bytes", facts.weight_bytes},
                             {"layers", facts.layers},
                             {"embedding", facts.embedding},
                             {"heads", facts.heads},
                             {"kv_heads", facts.kv_heads},
                             {"head_dim", facts.head_dim},
                             {"experts", facts.experts},
                             {"experts_used", facts.experts_used},
                             {"context", facts.context},
                             {"tokenizer", to_json(facts.tokenizer)},
                             {"chat_template", facts.chat_template != "no"},
                             {"unsupported", to_json(facts.unsupported)}};
  if (facts.has_geometry()) {
    boost::json::object kv;
    for (shm::KvType type : shm::kKvTypes) kv.emplace(shm::name_of(type), facts.kv_bytes_per_token(type));
    object.emplace("kv_bytes_per_token", std::move(kv));
  }
  if (keys) {
    boost::json::object values;
    for (const auto& [key, value] : file.values())
      values.emplace(client::to_utf8(key), to_json(format::describe(value)));
    object.emplace("keys", std::move(values));
  }
  if (tensors) {
    boost::json::array list;
    for (const format::Tensor& tensor : file.tensors())
      list.push_back(boost::json::object{
          {"name", to_json(tensor.name)}, {"type", tensor.type->name}, {"dims", to_json(tensor.dims)}});
    object.emplace("tensors", std::move(list));
  }
  return object;
}

std::string fact(const char* name, const std::string& value) {
  return format("%-14s", name) + (value.empty() ? "-" : visible(value)) + "\n";
}

std::string facts_text(const Facts& facts, bool keys, bool tensors) {
  const format::Gguf& file = *facts.file;
  const uint64_t parameters = format::parameter_count(file);
  auto number = [](uint64_t value) { return std::to_string(value); };
  std::string text = fact("file", format("%s (GGUF version %u, %s)", file.path().c_str(), file.version(),
                                         human_bytes(static_cast<double>(file.file_bytes())).c_str()));
  text += fact("name", text_of(file, "general.name"));
  text += fact("architecture", facts.architecture);
  const uint64_t active = active_parameters(facts);
  text += fact("parameters", number(parameters) + " (" + format::size_label(parameters) + ")" +
                                 (active == parameters ? "" : ", " + format::size_label(active) + " for each token"));
  text += fact("weights", weights_text(file));
  text += fact("layers", number(facts.layers));
  text += fact("heads", format("%ju, %ju for K and V, of %ju", static_cast<uintmax_t>(facts.heads),
                               static_cast<uintmax_t>(facts.kv_heads), static_cast<uintmax_t>(facts.head_dim)));
  if (facts.experts)
    text += fact("experts", number(facts.experts) + ", " + number(facts.experts_used) + " of them for each token");
  text += fact("embedding", number(facts.embedding));
  text += fact("context", number(facts.context) + " tokens");
  text += fact("tokenizer", facts.tokenizer);
  text += fact("chat template", facts.chat_template);
  text += fact("memory", human_bytes(static_cast<double>(facts.weight_bytes)) + " for weights");
  if (facts.has_geometry()) text += fact("KV memory", "per 1K tokens: " + kv_text(facts));
  for (const std::string& problem : facts.unsupported) text += fact("not supported", problem);
  return text + details_text(file, keys, tensors);
}

}  // namespace ellm::cli
