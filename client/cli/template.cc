// ellm template: what a chat looks like as a prompt.
#include <boost/json/serialize.hpp>

#include "client/cli/command_line.h"
#include "client/cli/failure.h"
#include "client/cli/json.h"
#include "client/cli/offline.h"
#include "client/cli/output.h"
#include "client/cli/variables.h"
#include "daemon/format/chat_template.h"
#include "daemon/format/tokenizer.h"

namespace ellm::cli {
namespace {

constexpr const char* kExamples =
    "  ellm template '{\"messages\": [{\"role\": \"user\", \"content\": \"Hi\"}], \"add_generation_prompt\": true}'\n"
    "  ellm template --model-file m.gguf < chat.json        the file's own template, without a daemon\n"
    "  ellm template --template-file t.jinja < chat.json    without a model\n"
    "  ellm template --template-var enable_thinking=false < chat.json\n"
    "Members: messages, tools, add_generation_prompt, bos_token, eos_token, now (a date such as \"2024-07-26\");\n"
    "any further one is a variable of the template, such as enable_thinking.";

/// The file's template over the variables and, where they say nothing else, the file's BOS and EOS.
std::string render_file(const std::string& path, boost::json::object variables) {
  auto file = open_model(path);
  auto source = file->find_string("tokenizer.chat_template");
  if (!source) throw Failure(kData, path + " holds no chat template (key tokenizer.chat_template)");
  auto tokenizer = format::Tokenizer::open(*file);
  auto add = [&](const char* name, std::optional<uint32_t> id) {
    if (id && !variables.contains(name)) variables.emplace(name, to_json(std::string(tokenizer->piece(*id))));
  };
  add("bos_token", tokenizer->bos());
  add("eos_token", tokenizer->eos());
  return format::ChatTemplate::parse(*source)->render(variables);
}

}  // namespace

int template_command(Invocation& invocation) {
  CommandLine line(invocation, "Renders a model's chat template over JSON variables and prints the text alone.",
                   kExamples);
  std::string variables, template_file;
  auto* given = line.app.add_option("JSON", variables, "The variables, an object; default: stdin");
  auto* model = line.add_model();
  auto* model_file = line.add_model_file()->excludes(model);
  line.app.add_option("--template-file", template_file, "Render this Jinja file")
      ->type_name("T.jinja")
      ->excludes(model)
      ->excludes(model_file);
  VariableOptions more(line, nullptr);
  line.add_json();
  line.parse();
  variables = text_or_stdin(line, given, variables, "JSON variables");
  boost::json::object object = parse_variables(variables);
  for (auto& [name, value] : more.get()) object[name] = value;
  if (more.option()->count() > 0) variables = boost::json::serialize(object);
  std::string text;
  if (!template_file.empty()) {
    text = format::ChatTemplate::parse(read_file(template_file))->render(object);
  } else if (line.offline()) {
    text = render_file(line.model_file, std::move(object));
  } else {
    client::Client client = line.connect();
    text = client.render_template({0, line.model, std::move(variables)});
  }
  if (line.json) write_out(serialize(boost::json::object{{"text", to_json(text)}}) + "\n");
  else write_text_alone(text);
  return kOk;
}

}  // namespace ellm::cli
