// ellm models, ps and status: what is there, loaded and running.
#include "client/cli/command_line.h"
#include "client/cli/failure.h"
#include "client/cli/json.h"
#include "client/cli/output.h"
#include "client/cli/tables.h"

namespace ellm::cli {
namespace {

using client::ModelInfo;

std::string models_table(const std::vector<ModelInfo>& models) {
  std::vector<std::vector<std::string>> rows = {
      {"NAME", ">SIZE", "PARAMETERS", "WEIGHTS", "ARCHITECTURE", ">CONTEXT", "STATE"}};
  for (const ModelInfo& model : models)
    rows.push_back({model.name, human_bytes(static_cast<double>(model.file_bytes)), or_dash(model.size_label),
                    or_dash(model.weight_types), or_dash(model.architecture),
                    model.context ? std::to_string(model.context) : "-",
                    !model.loaded  ? "on disk"
                    : model.locked ? "loaded, locked"
                                   : "loaded"});
  return table(rows);
}

std::string names_of(const std::vector<ModelInfo>& models) {
  std::string text;
  for (const ModelInfo& model : models) text += model.name + "\n";
  return text;
}

}  // namespace

int models_command(Invocation& invocation) {
  CommandLine line(invocation, "Lists the models in the models directory and those that are loaded.",
                   "  ellm models\n"
                   "  ellm models --names | xargs -n1 ellm inspect\n"
                   "  ellm models --json | jq -r '.models[] | select(.loaded) | .name'\n"
                   "`ellm load`, `ellm unload` and `ellm rm` change what is loaded and what is there.");
  bool names = false;
  line.app.add_flag("-q,--names", names, "Names alone, one a line")->excludes(line.add_json());
  line.parse();
  client::Client client = line.connect();
  const client::ModelsReply reply = client.list_models();
  const std::vector<ModelInfo>& models = reply.models;
  const bool unreadable = !reply.warnings.empty();
  if (line.json)
    write_out(serialize(boost::json::object{{"models", to_json(models)}, {"warnings", to_json(reply.warnings)}}) +
              "\n");
  else if (names) write_out(names_of(models));
  else if (!models.empty()) write_out(models_table(models));
  else if (!unreadable) write_out("no models yet: `ellm pull` fetches one\n");
  for (const std::string& warning : reply.warnings) write_error("ellmd " + warning);
  return models.empty() && unreadable ? kDenied : kOk;
}

int ps_command(Invocation& invocation) {
  CommandLine line(invocation, "Lists loaded models and running requests: your own, all of them for an administrator.",
                   "  ellm ps\n"
                   "  watch -n1 ellm ps\n"
                   "  ellm ps --json | jq '.requests | length'");
  line.add_json();
  line.parse();
  client::Client client = line.connect();
  client::StatusReply status = client.status();
  if (line.json) {
    write_out(
        serialize(boost::json::object{{"models", to_json(status.models)}, {"requests", to_json(status.requests)}}) +
        "\n");
    return kOk;
  }
  write_out(status.models.empty() ? "no model is loaded\n" : loaded_table(status.models));
  write_out("\n" + (status.requests.empty() ? "no request is running\n" : requests_table(status.requests)));
  return kOk;
}

int status_command(Invocation& invocation) {
  CommandLine line(invocation, "How the daemon is doing.",
                   "  ellm status\n  ellm status --json | jq .running\n  ellm status --wait 0 > /dev/null && echo up");
  line.add_json();
  line.parse();
  client::Client client = line.connect();
  client::StatusReply status = client.status();
  if (line.json) {
    auto object = to_json(status).get_object();
    object.erase("id");
    write_out(serialize(object) + "\n");
    return kOk;
  }
  std::string text = format("ellmd %s, process %u, up %s\n", status.version.c_str(), status.pid,
                            human_seconds(status.uptime_s).c_str());
  text += format("%u threads, %s kernels, %s\n", status.threads, status.kernels.c_str(), status.cpu.c_str());
  text += format("%u running, %u queued, %u connected; %ju requests served, %ju prompt and %ju generated tokens\n",
                 status.running, status.queued, status.connections, static_cast<uintmax_t>(status.served),
                 static_cast<uintmax_t>(status.prompt_tokens), static_cast<uintmax_t>(status.completion_tokens));
  if (const client::DiskInfo& disk = status.disk; disk.budget_bytes != 0)
    text += format("prefixes on disk: %s of %s\n", human_bytes(static_cast<double>(disk.bytes)).c_str(),
                   human_bytes(static_cast<double>(disk.budget_bytes)).c_str());
  for (const std::string& warning : status.warnings) text += "warning: " + warning + "\n";
  text += "\n" + (status.models.empty() ? "no model is loaded\n" : loaded_table(status.models));
  write_out(text);
  return kOk;
}

}  // namespace ellm::cli
