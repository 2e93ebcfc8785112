// ellm inspect: what a model holds, from its file and from what the daemon knows of it.
#include <unistd.h>

#include <optional>

#include "client/cli/command_line.h"
#include "client/cli/facts.h"
#include "client/cli/failure.h"
#include "client/cli/json.h"
#include "client/cli/output.h"
#include "client/places.h"

namespace ellm::cli {
namespace {

constexpr const char* kExamples =
    "  ellm inspect qwen-0.5b                 the daemon's state of it too, where there is a daemon\n"
    "  ellm inspect ./m.gguf                  before loading it: what it needs, what is not supported\n"
    "  ellm inspect ./m.gguf --keys           all metadata\n"
    "  ellm inspect ./m.gguf --tensors --json | jq '.tensors[0]'";

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

bool is_path(const std::string& model) { return model.find('/') != std::string::npos || model.ends_with(".gguf"); }

/// What there is to say of: a file that can be read, the daemon's view, or both.
struct Subject {
  std::string file;
  std::optional<client::ModelInfo> info;
};

Subject find_subject(const CommandLine& line) {
  if (line.offline()) return {line.model_file, {}};
  if (is_path(line.model)) return {line.model, {}};
  try {
    Subject subject{"", find_model(line)};
    if (access(subject.info->path.c_str(), R_OK) == 0) subject.file = subject.info->path;
    return subject;
  } catch (const client::ConnectionError&) {  // no daemon: the file may be there all the same
    const std::string file = client::models_directory() + "/" + line.model + ".gguf";
    if (line.model.empty() || access(file.c_str(), R_OK) != 0) throw;
    return {file, {}};
  }
}

std::string state_text(const client::ModelInfo& model) {
  std::string text = fact("state", !model.loaded ? "on disk"
                                                 : "loaded, " + human_bytes(static_cast<double>(model.resident_bytes)) +
                                                       (model.locked ? ", locked" : ", not locked"));
  if (model.loaded)
    text +=
        fact("KV", format("%s, %ju tokens, %ju free, %ju cached", model.kv_type.c_str(), uintmax_t{model.kv_pages} * 32,
                          uintmax_t{model.kv_pages_free} * 32, uintmax_t{model.kv_pages_cached} * 32));
  return text;
}

std::string model_text(const client::ModelInfo& model) {
  return fact("name", model.name) +
         fact("file", model.path + " (" + human_bytes(static_cast<double>(model.file_bytes)) + ")") +
         fact("architecture", model.architecture) +
         fact("parameters", std::to_string(model.parameters) + " (" + model.size_label + ")") +
         fact("weights", model.weight_types) + fact("context", std::to_string(model.context) + " tokens") +
         fact("tokenizer", model.tokenizer) + fact("chat template", model.chat ? "yes" : "no") + state_text(model);
}

}  // namespace

int inspect_command(Invocation& invocation) {
  CommandLine line(
      invocation,
      "What a model holds and needs, and what of it this program does not support. Exits with 0 where the file "
      "can be read, supported or not.",
      kExamples);
  bool keys = false, tensors = false;
  auto* model = line.app.add_option("MODEL|FILE", line.model,
                                    "A model's name (see `ellm models`) or a GGUF file; default: the loaded model");
  line.add_model_file()->excludes(model);
  line.app.add_flag("--keys", keys, "All metadata of the file");
  line.app.add_flag("--tensors", tensors, "All tensors of the file");
  line.add_json();
  line.parse();
  const Subject subject = find_subject(line);
  if (subject.file.empty()) {
    const client::ModelInfo& info = *subject.info;
    if (keys || tensors) throw Failure(kDenied, "cannot read " + info.path + ": --keys and --tensors need the file");
    write_text(line.json ? serialize(to_json(info)) + "\n" : model_text(info));
    return kOk;
  }
  const Facts facts = read_facts(subject.file);
  if (line.json) {
    boost::json::object object = facts_json(facts, keys, tensors);
    if (subject.info) object.emplace("daemon", to_json(*subject.info));
    write_text(serialize(object) + "\n");
  } else {
    write_text(facts_text(facts, keys, tensors) + (subject.info ? state_text(*subject.info) : ""));
  }
  return kOk;
}

}  // namespace ellm::cli
