// ellm tokenize and detokenize: through the daemon, or with a file's tokenizer.
#include "client/cli/command_line.h"
#include "client/cli/failure.h"
#include "client/cli/json.h"
#include "client/cli/offline.h"
#include "client/cli/output.h"
#include "daemon/format/tokenizer.h"

namespace ellm::cli {
namespace {

constexpr const char* kTokenizeExamples =
    "  ellm tokenize \"Hello, world\"\n"
    "  ellm tokenize --pieces \"Hello, world\"           a line per token\n"
    "  ellm tokenize --no-special < book.txt | wc -w    count, stdin to the byte\n"
    "  ellm tokenize --json --model-file m.gguf \"Hi\"    without a daemon";
constexpr const char* kDetokenizeExamples =
    "  ellm detokenize 9906 11 1917\n"
    "  ellm tokenize --no-special \"round trip\" | ellm detokenize\n"
    "  ellm detokenize --special --model-file m.gguf < ids.txt";

std::shared_ptr<const format::Tokenizer> open_tokenizer(const CommandLine& line) {
  return format::Tokenizer::open(*open_model(line.model_file));
}

client::TokenizeReply tokenize(const CommandLine& line, client::Tokenize request) {
  if (!line.offline()) {
    client::Client client = line.connect();
    return client.tokenize(std::move(request));
  }
  auto tokenizer = open_tokenizer(line);
  client::TokenizeReply reply;
  reply.tokens =
      tokenizer->encode(request.text, {.add_special = request.add_special, .parse_special = request.parse_special});
  for (uint32_t id : reply.tokens) reply.pieces.emplace_back(tokenizer->piece(id));
  return reply;
}

}  // namespace

int tokenize_command(Invocation& invocation) {
  CommandLine line(invocation, "Prints a text's token ids on one line.", kTokenizeExamples);
  client::Tokenize request;
  std::string text;
  bool no_special = false, plain = false, pieces = false;
  auto* given = line.app.add_option("TEXT", text, "The text; default: stdin");
  auto* model = line.add_model();
  line.add_model_file()->excludes(model);
  line.app.add_flag("--no-special", no_special, "Add no BOS or EOS");
  line.app.add_flag("--plain", plain, "Read the text of a special token, such as <|im_end|>, as ordinary text");
  line.app.add_flag("--pieces", pieces, "A line per token: its id, and its text as a JSON string");
  line.add_json();
  line.parse();
  request.text = text_or_stdin(line, given, text, "a text");
  request.model = line.model;
  request.add_special = !no_special;
  request.parse_special = !plain;
  client::TokenizeReply reply = tokenize(line, std::move(request));

  std::string out;
  if (line.json) {
    out = serialize(boost::json::object{{"ids", to_json(reply.tokens)}, {"pieces", to_json(reply.pieces)}}) + "\n";
  } else if (pieces) {
    for (size_t i = 0; i < reply.tokens.size(); i++)
      out +=
          format("%6u ", reply.tokens[i]) + serialize(to_json(i < reply.pieces.size() ? reply.pieces[i] : "")) + "\n";
  } else {
    const char* separator = "";
    for (uint32_t id : reply.tokens) out += std::exchange(separator, " ") + std::to_string(id);
    out += "\n";
  }
  write_out(out);
  return kOk;
}

int detokenize_command(Invocation& invocation) {
  CommandLine line(invocation, "Prints the text of token ids, to the byte.", kDetokenizeExamples);
  client::Detokenize request;
  std::vector<std::string> words;
  auto* given = line.app.add_option("ID", words, "Token ids; default: stdin");
  auto* model = line.add_model();
  line.add_model_file()->excludes(model);
  line.app.add_flag("--special", request.special, "Print the text of special tokens too");
  line.add_json();
  line.parse();
  std::string joined;
  for (const std::string& word : words) joined += word + " ";
  request.tokens = parse_ids(text_or_stdin(line, given, joined, "token ids"));
  request.model = line.model;
  std::string text;
  if (line.offline()) {
    const auto tokenizer = open_tokenizer(line);
    for (size_t i = 0; i < request.tokens.size(); ++i) {
      if (request.tokens[i] < tokenizer->vocabulary_size()) continue;
      throw Failure(kData, "tokens[" + std::to_string(i) + "] is " + std::to_string(request.tokens[i]) + "; " +
                               line.model_file + " has a vocabulary of " +
                               std::to_string(tokenizer->vocabulary_size()));
    }
    text = tokenizer->decode(request.tokens, request.special);
  } else {
    client::Client client = line.connect();
    text = client.detokenize(std::move(request));
  }
  if (line.json) write_out(serialize(boost::json::object{{"text", to_json(text)}}) + "\n");
  else write_text_alone(text);
  return kOk;
}

}  // namespace ellm::cli
