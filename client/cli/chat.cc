// ellm chat: several turns. Each answer's token ids go back with the next turn, so that the daemon finds their prefix
// again.
#include <optional>

#include "client/cli/command_line.h"
#include "client/cli/failure.h"
#include "client/cli/interrupt.h"
#include "client/cli/json.h"
#include "client/cli/line_editor.h"
#include "client/cli/output.h"
#include "client/cli/sampling.h"
#include "client/cli/statistics.h"
#include "client/cli/urgency.h"
#include "client/cli/variables.h"

namespace ellm::cli {
namespace {

constexpr const char* kExamples =
    "  ellm chat\n"
    "  ellm chat --system \"You answer in one sentence.\" -t 0\n"
    "  printf 'What is 2 + 2?\\nAnd times 10?\\n' | ellm chat    one turn a line\n"
    "  ellm chat --json < questions.txt | jq -r .text             one JSON object a turn\n"
    "Ctrl-C stops an answer or clears the line, Ctrl-D leaves. A line that ends in \\ goes on in the next. /help lists "
    "commands.";

constexpr const char* kHelp =
    "  /reset          forget the conversation\n"
    "  /system [TEXT]  set the system message (without TEXT: none) and forget the conversation\n"
    "  /model [NAME]   show or change the model\n"
    "  /retry          another answer to the last message, with the next seed\n"
    "  /stats          switch speed and token counts on or off\n"
    "  /quit           leave (also Ctrl-D)\n"
    "Ctrl-C stops an answer or clears the line. A line that ends in \\ goes on in the next.\n";

class Conversation {
 public:
  Conversation(const CommandLine& line, const UrgencyOptions& urgency, client::Sampling sampling, std::string variables,
               const std::string& system, bool statistics)
      : line_(line), urgency_(urgency), model_(line.model), sampling_(std::move(sampling)),
        variables_(std::move(variables)), statistics_(statistics) {
    set_system(system);
  }

  /// Fails where there is no daemon.
  void connect() { client_.emplace(line_.client_options(interrupted)); }

  void set_system(const std::string& text) {
    messages_.clear();
    if (!text.empty()) messages_.push_back({"system", text, {}, ""});
  }
  bool say(const std::string& text) {
    messages_.push_back({"user", text, {}, ""});
    return answer();
  }
  /// False to leave.
  bool command(const std::string& text);
  /// Exit code of the last answer that failed.
  int failure() const { return failure_; }

 private:
  bool answer();
  client::Completion ask();
  void retry();
  void drop_question() { messages_.pop_back(); }

  const CommandLine& line_;
  const UrgencyOptions& urgency_;
  std::optional<client::Client> client_;
  std::string model_;
  client::Sampling sampling_;
  std::string variables_;
  std::vector<client::ChatMessage> messages_;
  bool statistics_;
  int failure_ = kOk;
};

/// Sends the conversation and prints the answer: as it comes, or as an object when it is complete.
client::Completion Conversation::ask() {
  if (!client_) connect();
  client::Chat request;
  request.model = model_;
  request.namespace_ = line_.name_space;
  request.messages = messages_;
  request.variables = variables_;
  request.sampling = sampling_;
  urgency_.apply(request);
  if (line_.json) {
    client::Completion completion = client_->chat(std::move(request));
    write_out(serialize(completion_json(completion, false)) + "\n");
    return completion;
  }
  bool at_line_start = true;
  client::Completion completion = client_->chat(std::move(request), [&](const client::Token& token) {
    write_text(token.text);
    if (!token.text.empty()) at_line_start = token.text.back() == '\n';
  });
  if (!at_line_start || completion.text.empty()) write_out("\n");
  return completion;
}

/// A failure is printed; the question is then taken back. Late: what there is of the answer stays.
bool Conversation::answer() {
  clear_interrupt();
  try {
    client::Completion completion = ask();
    if (completion.finish_reason == client::FinishReason::cancelled) write_note("(stopped)");
    if (statistics_) write_note(describe_statistics(completion));
    const bool late = completion.finish_reason == client::FinishReason::deadline;
    if (late) write_error(urgency_.passed()), failure_ = kBusy;
    if (completion.text.empty() && (late || completion.finish_reason == client::FinishReason::cancelled))
      drop_question();
    else messages_.push_back({"assistant", std::move(completion.text), std::move(completion.tokens), ""});
    return !late;
  } catch (const OutputClosed&) {
    throw;
  } catch (...) {
    failure_ = report_failure();
    if (failure_ == kUnavailable) client_.reset();  // the next turn connects again
    drop_question();
    return false;
  }
}

void Conversation::retry() {
  if (messages_.empty() || messages_.back().role == "system") return write_note("nothing was asked yet");
  client::ChatMessage old = messages_.back();
  if (old.role == "assistant") messages_.pop_back();
  sampling_.seed++;
  std::vector<client::ChatMessage> before = messages_;
  if (!answer() && old.role == "assistant") messages_ = before, messages_.push_back(old);
}

bool Conversation::command(const std::string& text) {
  size_t end = text.find_first_of(" \t\n");
  std::string name = text.substr(0, end), rest;
  if (size_t start = text.find_first_not_of(" \t\n", std::min(end, text.size())); start != std::string::npos)
    rest = text.substr(start);
  if (name == "/quit" || name == "/exit" || name == "/bye") return false;
  if (name == "/help" || name == "/?") {
    write_out(kHelp);
  } else if (name == "/reset" || name == "/clear") {
    bool system = !messages_.empty() && messages_[0].role == "system";
    messages_.resize(system ? 1 : 0);
  } else if (name == "/system") {
    set_system(rest);
  } else if (name == "/model") {
    if (!rest.empty()) model_ = rest;
    write_note(model_.empty() ? "the daemon's default model" : model_);
  } else if (name == "/retry") {
    retry();
  } else if (name == "/stats") {
    statistics_ = !statistics_;
  } else {
    write_note("there is no command " + name + ": /help lists them");
  }
  return true;
}

}  // namespace

int chat_command(Invocation& invocation) {
  CommandLine line(invocation, "A conversation.", kExamples);
  std::string system;
  bool statistics = false;
  line.app.add_option("-s,--system", system, "A system message")->type_name("TEXT");
  line.add_model();
  line.add_namespace();
  line.app.add_flag("-v,--stats", statistics, "Speed and token counts after each answer, on stderr");
  line.add_json()->description("One JSON object per answer, on a line, for scripts");
  VariableOptions variables(line, "messages");
  SamplingOptions sampling_options(line);
  UrgencyOptions urgency(line);
  line.parse();

  InterruptGuard guard(false);
  Conversation conversation(line, urgency, sampling_options.get(), variables.text(), system, statistics);
  conversation.connect();
  bool terminal = !stdin_is_piped();
  LineEditor editor(terminal ? history_path() : "");
  if (terminal) write_note("/help lists commands, Ctrl-D leaves");
  std::string text;
  for (;;) {
    LineEditor::Result result = editor.read(text);
    if (result == LineEditor::Result::interrupted || (result == LineEditor::Result::end && terminal)) write_out("\n");
    if (result == LineEditor::Result::end) break;
    if (result == LineEditor::Result::interrupted || text.find_first_not_of(" \t\n") == std::string::npos) continue;
    if (text[0] == '/' && terminal) {
      if (!conversation.command(text)) break;
    } else if (!conversation.say(text) && !terminal) {
      return conversation.failure();
    }
  }
  return kOk;
}

}  // namespace ellm::cli
