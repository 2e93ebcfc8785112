// ellm score: how likely a model finds a text.
#include "client/cli/command_line.h"
#include "client/cli/failure.h"
#include "client/cli/json.h"
#include "client/cli/output.h"
#include "client/cli/urgency.h"

namespace ellm::cli {
namespace {

constexpr const char* kExamples =
    "  ellm score \"The cat sat on the mat.\"\n"
    "  ellm score < chapter.txt                        to the byte, the last newline too\n"
    "  ellm score --json --top 5 < chapter.txt | jq .perplexity\n"
    "  ellm tokenize \"Once upon\" | ellm score --ids";

boost::json::object scores_json(const client::Scores& scores, bool top) {
  boost::json::object object{{"perplexity", scores.perplexity()},
                             {"tokens", to_json(scores.tokens)},
                             {"log_probs", to_json(scores.log_probs)}};
  if (top) object.emplace("top", to_json(scores.top));
  object.emplace("usage", to_json(scores.usage));
  return object;
}

/// A line per token: id, log-probability, the best alternatives at its position.
void write_tokens(const client::Scores& scores) {
  std::string text;
  for (size_t i = 0; i < scores.tokens.size(); i++) {
    text += format("%6u ", scores.tokens[i]);
    text += i == 0 ? "       -" : format("%8.4f", i - 1 < scores.log_probs.size() ? scores.log_probs[i - 1] : 0.0f);
    if (i > 0 && i - 1 < scores.top.size())
      for (auto [id, log_prob] : scores.top[i - 1]) text += format("  %6u %8.4f", id, log_prob);
    text += "\n";
  }
  write_out(text);
}

}  // namespace

int score_command(Invocation& invocation) {
  CommandLine line(invocation, "Log-probabilities (natural logarithm) of a text's own tokens, and its perplexity.",
                   kExamples);
  std::string text;
  bool ids = false, tokens = false;
  uint32_t top = 0;
  auto* given = line.app.add_option("TEXT", text, "The text; default: stdin");
  line.add_model();
  line.add_namespace();
  line.app.add_flag("--ids", ids, "The text is token ids, taken as they are");
  line.app.add_option("--top", top, "The K likeliest tokens at every position")->type_name("K");
  line.app.add_flag("--tokens", tokens,
                    "A line per token: id, log-probability; with --top also what was likeliest in its place");
  line.add_json();
  UrgencyOptions urgency(line);
  line.parse();

  client::Score request;
  request.model = line.model;
  request.namespace_ = line.name_space;
  request.top = top;
  request.use_tokens = ids;
  urgency.apply(request);
  text = text_or_stdin(line, given, text, ids ? "token ids" : "a text");
  if (ids) request.tokens = parse_ids(text);
  else request.text = std::move(text);
  client::Client client = line.connect();
  client::Scores scores = client.score(std::move(request));
  if (scores.log_probs.empty())
    throw Failure(kData, format("a score needs at least 2 tokens, the text has %zu", scores.tokens.size()));
  if (line.json) {
    write_out(serialize(scores_json(scores, top > 0)) + "\n");
  } else {
    if (tokens || top > 0) write_tokens(scores);
    write_out(format("perplexity %.4f over %zu tokens\n", scores.perplexity(), scores.log_probs.size()));
  }
  return kOk;
}

}  // namespace ellm::cli
