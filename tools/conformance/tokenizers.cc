// Token ids: llama.cpp's vectors of the published vocabularies, and strings with the ids of the tokenizers' own
// libraries.
#include <boost/json.hpp>
#include <map>
#include <sstream>

#include "client/places.h"
#include "daemon/format/tokenizer.h"
#include "tools/conformance/report.h"

namespace ellm::conformance {
namespace {

namespace json = boost::json;
using Ids = std::vector<format::TokenId>;

constexpr format::Tokenizer::EncodeOptions kPlain{.add_special = false, .parse_special = false};

std::shared_ptr<const format::Tokenizer> open(const std::string& path) {
  return format::Tokenizer::open(*format::Gguf::open(path));
}

Line vectors(const std::string& name, const format::Tokenizer& tokenizer, const std::string& stem) {
  Line line{"tokenizers", name};
  const auto inputs = split(read_file(stem + ".inp"), "\n__ggml_vocab_test__\n");
  const auto outputs = split(read_file(stem + ".out"), "\n");
  for (size_t i = 0; i < std::max(inputs.size(), outputs.size()); ++i) {
    if (i >= inputs.size() || i >= outputs.size()) {
      line.fail("the files differ in length");
      continue;
    }
    std::istringstream numbers(outputs[i]);
    const Ids expected{std::istream_iterator<format::TokenId>(numbers), {}};
    line.count(tokenizer.encode(inputs[i], kPlain) == expected, "vector " + std::to_string(i));
  }
  return line;
}

bool has_odd_spaces(std::string text) {
  for (size_t at; (at = text.find("\xE2\x96\x81")) != text.npos;) text.replace(at, 3, " ");
  return text.empty() || text.front() == ' ' || text.back() == ' ' || text.find("  ") != text.npos;
}

/// A column of strings.jsonl. `trims`: its original drops leading, trailing and repeated spaces.
Line strings(const std::string& column, const std::vector<json::object>& rows, const format::Tokenizer& tokenizer,
             bool trims) {
  Line line{"tokenizers", "strings, " + column};
  for (size_t i = 0; i < rows.size(); ++i) {
    const json::value* ids = rows[i].if_contains(column);
    if (!ids || !ids->is_array()) continue;
    const std::string text(rows[i].at("text").as_string());
    const bool good = tokenizer.encode(text, kPlain) == json::value_to<Ids>(*ids);
    if (!good && trims && has_odd_spaces(text))
      line.leave_out(
          "rows with leading, trailing or repeated spaces, which its original drops and its file does not mention");
    else line.count(good, "row " + std::to_string(i + 1) + ": " + json::serialize(json::string(text)).substr(0, 60));
  }
  return line;
}

struct Column {
  const char *name, *file;  // below the data
  bool trims = false;
};
constexpr Column kColumns[] = {{"qwen", "tokenizers/qwen2.gguf.gz"},
                               {"llama3", "tokenizers/llama-bpe.gguf.gz"},
                               {"llama2", "tokenizers/llama-spm.gguf.gz"},
                               {"gpt2_llamacpp", "tokenizers/gpt-2.gguf.gz"},
                               {"tok512", "models/stories260K.gguf", true}};

/// gemma's vocabulary comes with the model, which is not among the shared data.
Line gemma_line(const std::vector<json::object>& rows) {
  const char* home = std::getenv("HOME");
  for (const std::string& path : {client::models_directory() + "/gemma3-270m.gguf",
                                  std::string(home ? home : "") + "/.cache/ellm-test/models/gemma-3-270m-q4_k_m.gguf"})
    if (std::filesystem::exists(path)) try {
        return strings("gemma", rows, *open(path), false);
      } catch (const format::FormatError& error) {
        Line line{"tokenizers", "strings, gemma"};
        line.fail(error.what());
        return line;
      }
  Line line{"tokenizers", "strings, gemma"};
  line.leave_out("gemma3-270m, whose vocabulary they need, is not here ($ELLM_TEST_DATA/tools/get-models gemma3-270m)",
                 rows.size());
  return line;
}

}  // namespace

std::vector<Line> tokenizer_lines(const Options& options) {
  std::vector<Line> lines;
  std::map<std::string, std::shared_ptr<const format::Tokenizer>> tokenizers;  // by file
  const auto tokenizer = [&](const std::string& file) {
    auto& known = tokenizers[file];
    const std::string path = options.data + "/" + file;
    if (!known) known = open(file.ends_with(".gz") ? unpack(options, path) : path);
    return known;
  };
  std::vector<std::string> names;
  for (const auto& entry : std::filesystem::directory_iterator(options.data + "/tokenizers"))
    if (entry.path().extension() == ".inp") names.push_back(entry.path().stem());
  std::sort(names.begin(), names.end());
  for (const std::string& name : names)
    lines.push_back(vectors(name, *tokenizer("tokenizers/" + name + ".gguf.gz"), options.data + "/tokenizers/" + name));
  std::vector<json::object> rows;
  for (const std::string& row : split(read_file(unpack(options, options.data + "/tokenizers/strings.jsonl.gz")), "\n"))
    rows.push_back(json::parse(row).as_object());
  for (const Column& column : kColumns)
    lines.push_back(strings(column.name, rows, *tokenizer(column.file), column.trims));
  lines.push_back(gemma_line(rows));
  return lines;
}

}  // namespace ellm::conformance
