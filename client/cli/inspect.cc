// ellm inspect: what a model file holds, from the file itself or as the daemon sees it.
#include "client/cli/command_line.h"
#include "client/cli/failure.h"
#include "client/cli/json.h"
#include "client/cli/offline.h"
#include "client/cli/output.h"
#include "daemon/format/inspect.h"
#include "daemon/format/tokenizer.h"
#include "shm/geometry.h"

namespace ellm::cli {
namespace {

constexpr const char* kExamples =
    "  ellm inspect qwen-0.5b\n"
    "  ellm inspect --model-file m.gguf                 without a daemon\n"
    "  ellm inspect --model-file m.gguf --keys          all metadata\n"
    "  ellm inspect --model-file m.gguf --tensors --json | jq '.tensors[0]'";

struct Facts {
  std::shared_ptr<const format::Gguf> file;
  std::string architecture, tokenizer;     // the tokenizer's description, or what is wrong with it
  uint64_t layers = 0, heads = 0, kv_heads = 0, head_dim = 0, embedding = 0, context = 0;
  bool has_template = false;

  /// Bytes of KV memory for each token of context.
  double kv_bytes_per_token(shm::KvType type) const {
    shm::PageGeometry geometry{static_cast<uint32_t>(layers), static_cast<uint32_t>(kv_heads),
                               static_cast<uint32_t>(head_dim), type, type};
    return static_cast<double>(geometry.page_bytes()) / shm::kPageTokens;
  }
  bool has_geometry() const {
    return layers && kv_heads && head_dim && layers < 1 << 16 && kv_heads < 1 << 16 && head_dim < 1 << 16;
  }
};

/// A size under the architecture's name; the first of a list where layers differ.
uint64_t size_of(const format::Gguf& file, const std::string& architecture, const char* key) {
  const format::Value* value = file.find(architecture + "." + key);
  if (!value || value->type == format::ValueType::array) return 0;
  return file.find_uint(architecture + "." + key).value_or(0);
}

Facts read_facts(const std::string& path) {
  Facts facts;
  facts.file = open_model(path);
  const format::Gguf& file = *facts.file;
  facts.architecture = file.find_string("general.architecture").value_or("unknown");
  auto size = [&](const char* key) { return size_of(file, facts.architecture, key); };
  facts.layers = size("block_count");
  facts.heads = size("attention.head_count");
  facts.kv_heads = size("attention.head_count_kv");
  if (!facts.kv_heads) facts.kv_heads = facts.heads;
  facts.embedding = size("embedding_length");
  facts.head_dim = size("attention.key_length");
  if (!facts.head_dim && facts.heads) facts.head_dim = facts.embedding / facts.heads;
  facts.context = size("context_length");
  facts.has_template = file.find("tokenizer.chat_template") != nullptr;
  if (file.find("tokenizer.ggml.model")) try {
      auto tokenizer = format::Tokenizer::open(file);
      facts.tokenizer = format("%s, %u tokens", tokenizer->description().c_str(), tokenizer->vocabulary_size());
    } catch (const format::FormatError& error) {
      facts.tokenizer = error.what();
    }
  return facts;
}

boost::json::object facts_json(const Facts& facts, bool keys, bool tensors) {
  const format::Gguf& file = *facts.file;
  boost::json::object object{{"path", file.path()},
                             {"gguf_version", file.version()},
                             {"file_bytes", file.file_bytes()},
                             {"name", to_json(std::string(file.find_string("general.name").value_or("")))},
                             {"architecture", to_json(facts.architecture)},
                             {"parameters", format::parameter_count(file)},
                             {"weight_types", format::describe_weight_types(file)},
                             {"layers", facts.layers},
                             {"embedding", facts.embedding},
                             {"heads", facts.heads},
                             {"kv_heads", facts.kv_heads},
                             {"head_dim", facts.head_dim},
                             {"context", facts.context},
                             {"tokenizer", to_json(facts.tokenizer)},
                             {"chat_template", facts.has_template}};
  if (facts.has_geometry())
    object.emplace("kv_bytes_per_token", boost::json::object{{"f16", facts.kv_bytes_per_token(shm::KvType::f16)},
                                                             {"int8", facts.kv_bytes_per_token(shm::KvType::int8)}});
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

std::string facts_text(const Facts& facts) {
  const format::Gguf& file = *facts.file;
  uint64_t parameters = format::parameter_count(file);
  auto number = [](uint64_t value) { return std::to_string(value); };
  std::vector<std::pair<std::string, std::string>> rows = {
      {"file", format("%s (GGUF version %u, %s)", file.path().c_str(), file.version(),
                      human_bytes(static_cast<double>(file.file_bytes())).c_str())},
      {"name", std::string(file.find_string("general.name").value_or("-"))},
      {"architecture", facts.architecture},
      {"parameters", number(parameters) + " (" + format::size_label(parameters) + ")"},
      {"weights", format::describe_weight_types(file)},
      {"layers", number(facts.layers)},
      {"heads", format("%ju, %ju for K and V, of %ju", static_cast<uintmax_t>(facts.heads),
                       static_cast<uintmax_t>(facts.kv_heads), static_cast<uintmax_t>(facts.head_dim))},
      {"embedding", number(facts.embedding)},
      {"context", number(facts.context) + " tokens"},
  };
  if (facts.has_geometry())
    rows.emplace_back("KV memory", human_bytes(facts.kv_bytes_per_token(shm::KvType::f16)) + " a token as f16, " +
                                       human_bytes(facts.kv_bytes_per_token(shm::KvType::int8)) + " as int8");
  rows.emplace_back("tokenizer", facts.tokenizer.empty() ? "-" : facts.tokenizer);
  rows.emplace_back("chat template", facts.has_template ? "yes" : "no");
  std::string text;
  for (const auto& [name, value] : rows) text += format("%-14s", name.c_str()) + value + "\n";
  return text;
}

std::string details_text(const format::Gguf& file, bool keys, bool tensors) {
  std::string text;
  if (keys) {
    text += "\n";
    for (const auto& [key, value] : file.values()) text += key + " = " + format::describe(value) + "\n";
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

/// The daemon's view of a model: one of its list.
client::ModelInfo find_model(const CommandLine& line) {
  client::Client client = line.connect();
  std::vector<client::ModelInfo> models = client.models();
  for (const client::ModelInfo& model : models)
    if (line.model.empty() ? model.loaded || models.size() == 1 : model.name == line.model || model.path == line.model)
      return model;
  throw Failure(kNoInput, line.model.empty() ? "no model is loaded: name one (see `ellm models`)"
                                             : "there is no model '" + line.model + "': see `ellm models`");
}

std::string model_text(const client::ModelInfo& model) {
  std::string text;
  auto row = [&](const char* name, const std::string& value) {
    text += format("%-14s", name) + (value.empty() ? "-" : value) + "\n";
  };
  row("name", model.name);
  row("file", model.path + " (" + human_bytes(static_cast<double>(model.file_bytes)) + ")");
  row("architecture", model.architecture);
  row("parameters", std::to_string(model.parameters) + " (" + model.size_label + ")");
  row("weights", model.weight_types);
  row("context", std::to_string(model.context) + " tokens");
  row("tokenizer", model.tokenizer);
  row("chat template", model.chat ? "yes" : "no");
  row("state", !model.loaded ? "on disk"
                             : std::string("loaded, ") + human_bytes(static_cast<double>(model.resident_bytes)) +
                                   (model.locked ? ", locked" : ", not locked"));
  if (model.loaded)
    row("KV", format("%s, %ju tokens, %ju free", model.kv_type.c_str(), uintmax_t{model.kv_pages} * 32,
                     uintmax_t{model.kv_pages_free} * 32));
  return text;
}

}  // namespace

int inspect_command(Invocation& invocation) {
  CommandLine line(invocation, "What a model holds: as the daemon knows it, or all of a file.", kExamples);
  bool keys = false, tensors = false;
  auto* model = line.app.add_option("MODEL", line.model, "A model's name (see `ellm models`); default: the loaded one");
  auto* model_file = line.add_model_file()->excludes(model);
  line.app.add_flag("--keys", keys, "All metadata of the file")->needs(model_file);
  line.app.add_flag("--tensors", tensors, "All tensors of the file")->needs(model_file);
  line.add_json();
  line.parse();
  if (!line.offline()) {
    client::ModelInfo info = find_model(line);
    write_text(line.json ? serialize(to_json(info)) + "\n" : model_text(info));
    return kOk;
  }
  Facts facts = read_facts(line.model_file);
  write_text(line.json ? serialize(facts_json(facts, keys, tensors)) + "\n"
                       : facts_text(facts) + details_text(*facts.file, keys, tensors));
  return kOk;
}

}  // namespace ellm::cli
