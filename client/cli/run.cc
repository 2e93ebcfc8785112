// ellm run: one prompt, one answer.
#include <charconv>
#include <utility>
#include <variant>

#include "client/cli/command_line.h"
#include "client/cli/failure.h"
#include "client/cli/interrupt.h"
#include "client/cli/json.h"
#include "client/cli/output.h"
#include "client/cli/sampling.h"
#include "client/cli/statistics.h"
#include "client/cli/urgency.h"
#include "client/cli/variables.h"

namespace ellm::cli {
namespace {

constexpr const char* kExamples =
    "  ellm run \"Why is the sky blue?\"\n"
    "  ellm run \"Summarise in one sentence:\" < report.txt     prompt, blank line, stdin\n"
    "  while read -r q; do ellm run \"$q\" < /dev/null; done < questions.txt   or it takes the other questions as material\n"
    "  git diff | ellm run --system \"You review code.\"\n"
    "  ellm run -t 0 --max-tokens 40 --raw \"Once upon a time\" plain completion, greedy\n"
    "  ellm run -n 5 --json \"Name a colour.\" | jq -r .text   five answers to the one prompt, which is computed once\n"
    "  ellm run -n 5 --json --events \"Name a colour.\"        the same, piece by piece as they come\n"
    "  ellm run --deadline 10 \"Write a story.\"               what there is of it after 10 s; then exit code 75\n"
    "  ellm run --stop $'\\n' --seed 7 \"Name a colour.\"\n"
    "  ellm run --json --logprobs 3 \"2 + 2 =\" | jq .logprobs\n"
    "  ellm run --template-var enable_thinking=false \"2 + 2\"  a variable of the model's chat template\n"
    "  ellm tokenize \"Once upon\" | ellm run --ids            token ids, taken as they are\n"
    "  ellm run -- \"-5 degrees is how many Fahrenheit?\"       a text that begins with a dash";

struct Options {
  std::string prompt, system;
  bool raw = false, ids = false, no_stream = false, events = false, statistics = false;
  uint32_t logprobs = 0, samples = 1;
  CLI::Option *prompt_given, *system_given, *logprobs_given;
};

std::string samples_fault(const std::string& text) {
  uint32_t n = 0;
  const char* end = text.data() + text.size();
  const auto parsed = std::from_chars(text.data(), end, n);
  if (parsed.ec == std::errc() && parsed.ptr == end && n > 0) return {};
  return "'" + text + "' is not a number of answers from 1 to 4294967295";
}

/// The argument, stdin, or both with a blank line between them.
std::string read_prompt(const CommandLine& line, const Options& options) {
  bool given = options.prompt_given->count() > 0;
  if (!given && !stdin_is_piped())
    line.usage_error(options.ids ? "give token ids as an argument or on stdin"
                                 : "give a prompt as an argument or on stdin (`ellm chat` converses)");
  std::string piped = stdin_is_piped() ? read_stdin() : "";
  if (!given && piped.empty()) throw Failure(kNoInput, "the prompt is empty: nothing came on stdin");
  if (!given) return piped;
  if (piped.empty()) return options.prompt;
  return options.prompt + (options.ids ? " " : "\n\n") + piped;
}

/// What `echo` and editors put at the end of a text is no part of a question.
std::string without_last_newline(std::string text) {
  if (text.ends_with('\n')) text.pop_back();
  if (text.ends_with('\r')) text.pop_back();
  return text;
}

client::Generate plain_request(const CommandLine& line, const Options& options, std::string prompt,
                               const client::Sampling& sampling) {
  client::Generate request;
  request.model = line.model;
  request.namespace_ = line.name_space;
  request.use_tokens = options.ids;
  if (options.ids) request.tokens = parse_ids(prompt);
  else request.prompt = std::move(prompt);
  request.sampling = sampling;
  return request;
}

client::Chat chat_request(const CommandLine& line, const Options& options, std::string prompt, std::string variables,
                          const client::Sampling& sampling) {
  if (prompt.empty()) line.usage_error("the prompt is empty");
  client::Chat request;
  request.model = line.model;
  request.namespace_ = line.name_space;
  if (options.system_given->count() > 0) request.messages.push_back({"system", options.system, {}, ""});
  request.messages.push_back({"user", without_last_newline(std::move(prompt)), {}, ""});
  request.variables = std::move(variables);
  request.sampling = sampling;
  return request;
}

/// "id logprob   id logprob  id logprob …": the token, then its alternatives.
void write_logprobs(const client::Completion& completion) {
  for (const client::TokenLogprob& token : completion.logprobs) {
    std::string text = format("%6u %8.4f ", token.id, token.logprob);
    for (auto [id, logprob] : token.top) text += format("  %6u %8.4f", id, logprob);
    write_out(text + "\n");
  }
}

client::Completion send(client::Client& client, std::variant<client::Generate, client::Chat> request,
                        const client::OnToken& on_token) {
  if (auto* plain = std::get_if<client::Generate>(&request)) return client.generate(std::move(*plain), on_token);
  return client.chat(std::get<client::Chat>(std::move(request)), on_token);
}

void write_heading(uint32_t sample, const Options& options) {
  if (options.samples > 1) write_out(format("--- sample %u ---\n", sample));
}

/// What is shown of an answer as it comes: of text the first sample's.
class Stream {
 public:
  Stream(const CommandLine& line, const Options& options) : options_(options), json_(line.json) {}
  client::OnToken on_token() {
    if (json_ && options_.events)
      return [](const client::Token& token) { write_out(serialize(piece_json(token)) + "\n"); };
    if (json_ || options_.no_stream) return nullptr;
    return [this](const client::Token& token) {
      if (token.sample != 0) return;
      if (!std::exchange(begun_, true)) write_heading(0, options_);
      write_text(token.text);
    };
  }
  /// Text of the first sample stands on stdout.
  bool begun() const { return begun_; }

 private:
  const Options& options_;
  bool json_, begun_ = false;
};

void write_completion(const client::Completion& completion, const CommandLine& line, const Options& options,
                      bool streamed) {
  bool logprobs = options.logprobs_given->count() > 0;
  if (line.json) {
    write_out(serialize(completion_json(completion, logprobs)) + "\n");
  } else {
    if (!streamed) write_heading(completion.sample, options);
    if (!streamed) write_text(completion.text);
    write_out("\n");
    if (logprobs) write_logprobs(completion);
  }
  if (options.statistics) write_note(describe_statistics(completion));
}

int exit_code(const client::Completion& completion, const UrgencyOptions& urgency) {
  bool cancelled = completion.finish_reason == client::FinishReason::cancelled;
  bool late = completion.finish_reason == client::FinishReason::deadline;
  for (const client::Completion& other : completion.others) {
    cancelled |= other.finish_reason == client::FinishReason::cancelled;
    late |= other.finish_reason == client::FinishReason::deadline;
  }
  if (late && !cancelled) write_error(urgency.passed());
  return cancelled ? kInterrupted : late ? kBusy : kOk;
}

}  // namespace

int run_command(Invocation& invocation) {
  CommandLine line(
      invocation,
      "Answers a prompt: an argument, stdin, or both. With both the argument is the instruction and stdin the "
      "material: the prompt is the argument, a blank line, stdin.",
      kExamples);
  Options options;
  options.prompt_given = line.app.add_option("PROMPT", options.prompt, "The prompt");
  options.system_given =
      line.app.add_option("-s,--system", options.system, "A system message before the prompt")->type_name("TEXT");
  line.add_model();
  line.add_namespace();
  auto* raw = line.app.add_flag("--raw", options.raw, "Continue the prompt as it is, without the chat template");
  auto* ids = line.app.add_flag("--ids", options.ids, "The prompt is token ids, taken as they are")
                  ->excludes(options.system_given, raw);
  raw->excludes(options.system_given);
  options.logprobs_given =
      line.app.add_option("--logprobs", options.logprobs, "Log-probabilities of the tokens and of N alternatives each")
          ->type_name("N");
  auto* json = line.add_json()->description("One JSON object, for scripts; with -n one for each answer, a line each");
  line.app
      .add_flag("--events", options.events,
                "With --json: before that, a line for each piece of an answer as it comes: its sample, text and tokens")
      ->needs(json);
  line.app.add_option("-n,--samples", options.samples, "So many answers to the prompt, which is computed once")
      ->type_name("N")
      ->capture_default_str()
      ->check(samples_fault);
  line.app.add_flag("--no-stream", options.no_stream, "Print the answer when it is complete");
  line.app.add_flag("-v,--stats", options.statistics, "Speed and token counts on stderr");
  VariableOptions variables(line, "messages");
  variables.option()->excludes(raw, ids);
  SamplingOptions sampling_options(line);
  UrgencyOptions urgency(line);
  line.parse();
  client::Sampling sampling = sampling_options.get();
  sampling.logprobs = options.logprobs;
  sampling.want_logprobs = options.logprobs_given->count() > 0;
  std::variant<client::Generate, client::Chat> request;
  if (options.raw || options.ids) request = plain_request(line, options, read_prompt(line, options), sampling);
  else request = chat_request(line, options, read_prompt(line, options), variables.text(), sampling);
  std::visit([&](auto& r) { r.n = options.samples, urgency.apply(r); }, request);

  InterruptGuard guard;
  client::Client client = line.connect(interrupted);
  Stream stream(line, options);
  client::Completion completion = send(client, std::move(request), stream.on_token());
  write_completion(completion, line, options, stream.begun());
  for (const client::Completion& other : completion.others) write_completion(other, line, options, false);
  return exit_code(completion, urgency);
}

}  // namespace ellm::cli
