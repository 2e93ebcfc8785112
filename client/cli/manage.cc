// ellm load, unload and rm: which models stand in memory and which on disk. For administrators of the daemon.
#include <unistd.h>

#include <algorithm>
#include <cstdio>

#include "client/cli/command_line.h"
#include "client/cli/failure.h"
#include "client/cli/interrupt.h"
#include "client/cli/json.h"
#include "client/cli/offline.h"
#include "client/cli/output.h"
#include "daemon/format/model_name.h"

namespace ellm::cli {
namespace {

using client::ModelInfo;
using client::ModelsAction;

/// As the daemon tells a path from a name; a file that lies here is meant as a file, too.
bool is_path(const std::string& what) {
  return what.find('/') != std::string::npos || (what.ends_with(".gguf") && access(what.c_str(), F_OK) == 0);
}

/// Hands a file over: the daemon need not be able to open it.
ModelInfo load_file(client::Client& client, const std::string& path, const std::string& name) {
  const auto file = open_model(path);  // what is wrong with it is said here, and by the user's own rights
  return client.add_model(name.empty() ? format::model_name(path) : name, file->part_paths());
}

ModelInfo load_name(client::Client& client, const std::string& name) {
  const std::vector<ModelInfo> models = client.models(ModelsAction::load, name);
  return models.empty() ? ModelInfo() : models.front();
}

void report(const CommandLine& line, const char* done, const ModelInfo& model) {
  if (line.json) write_out(serialize(to_json(model)) + "\n");
  else write_note(std::string(done) + model.name);
}

/// True for "y" or "yes".
bool confirmed(const std::string& question) {
  write_note(question);
  std::string answer;
  char byte;
  while (read(STDIN_FILENO, &byte, 1) == 1 && byte != '\n') answer += byte;
  return answer == "y" || answer == "Y" || answer == "yes";
}

/// The model as the daemon lists it, for the question; the daemon itself says what is wrong with a name.
const ModelInfo* find_model(const std::vector<ModelInfo>& models, const std::string& name) {
  const auto found = std::find_if(models.begin(), models.end(), [&](const ModelInfo& m) { return m.name == name; });
  return found == models.end() ? nullptr : &*found;
}

}  // namespace

int load_command(Invocation& invocation) {
  CommandLine line(invocation, "Loads a model into the daemon's memory, before the first request needs it.",
                   "  ellm load qwen-0.5b\n"
                   "  ellm load ./my.gguf                a file: handed over, the daemon need not be able to open it\n"
                   "  ellm load ./my-00001-of-00003.gguf --name mine       with all its parts\n"
                   "  ellm load qwen-0.5b && ellm run -m qwen-0.5b \"Hello\"");
  std::string what, name;
  line.app.add_option("NAME|FILE", what, "A model of the models directory, or a GGUF file")->required();
  line.app.add_option("--name", name, "What a file's model is called, instead of what its file is")->type_name("NAME");
  line.add_json();
  line.parse();
  if (!name.empty() && !is_path(what)) line.usage_error("--name goes with a file");
  InterruptGuard guard;
  client::Client client = line.connect(interrupted);
  report(line, "loaded ", is_path(what) ? load_file(client, what, name) : load_name(client, what));
  return kOk;
}

int unload_command(Invocation& invocation) {
  CommandLine line(invocation, "Gives a model's memory back. Requests that run with it are cancelled.",
                   "  ellm unload qwen-0.5b");
  std::string name;
  line.app.add_option("NAME", name, "A loaded model (see `ellm ps`)")->required();
  line.parse();
  client::Client client = line.connect();
  client.models(ModelsAction::unload, name);
  write_note("unloaded " + name);
  return kOk;
}

int rm_command(Invocation& invocation) {
  CommandLine line(invocation, "Removes models from the models directory. A loaded one must be unloaded first.",
                   "  ellm rm qwen-0.5b\n"
                   "  ellm rm --yes old-model older-model        without asking, for scripts");
  std::vector<std::string> names;
  bool yes = false;
  line.app.add_option("NAME", names, "Models of the models directory (see `ellm models`)")->required();
  line.app.add_flag("-y,--yes", yes, "Do not ask (it is only asked on a terminal)");
  line.parse();
  client::Client client = line.connect();
  const std::vector<ModelInfo> models = client.models();
  for (const std::string& name : names) {
    const ModelInfo* model = find_model(models, name);
    if (!yes && model && !model->loaded && isatty(STDIN_FILENO) &&
        !confirmed("remove " + model->path + " (" + human_bytes(static_cast<double>(model->file_bytes)) + ")? [y/N]")) {
      write_note("kept " + name);
      continue;
    }
    client.remove_model(name);
    write_note("removed " + name);
  }
  return kOk;
}

}  // namespace ellm::cli
