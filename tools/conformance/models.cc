// Whole models: logits, greedy texts and perplexities that others computed over the same files.
#include <boost/json.hpp>
#include <cmath>
#include <cstring>
#include <map>
#include <sstream>

#include "tools/conformance/report.h"
#include "tools/logits.h"
#include "tools/model_runner.h"

namespace ellm::conformance {
namespace {

namespace json = boost::json;
using Ids = std::vector<uint32_t>;
using tools::ModelRunner;

// What is asked: F32 logits to this distance from the reference (gemma's was rounded more); the likelihood of a text by
// quantised weights, whose activations the peer rounds in its own way; a choice that counts as clear; perplexity.
constexpr double kLogits = 1e-3, kGemmaLogits = 5e-3, kLikelihood = 0.01, kClear = 0.5, kPerplexity = 0.005;

Ids ids_of(const json::value& value) { return json::value_to<Ids>(value); }

ModelRunner open(const std::string& path, shm::KvType kv_type) {
  return {model::Model::load(path, {.lock = false}), {.kv_type = kv_type}};
}

template <typename Check>
Line guarded(const std::string& name, const Check& check) {
  Line line{"models", name};
  try {
    check(line);
  } catch (const std::exception& error) {
    line.fail(error.what());
  }
  return line;
}

Line gold_line(const Options& options) {
  return guarded("stories260K, float64", [&](Line& line) {
    const json::value gold = json::parse(read_file(options.data + "/reference/stories260K_gold.json"));
    const std::string npy = read_file(options.data + "/reference/stories260K_gold_logits_f32.npy");
    const Ids tokens = ids_of(gold.at("tokens"));
    ModelRunner runner = open(options.data + "/models/stories260K.gguf", shm::KvType::f32);
    const auto logits = runner.logits(tokens);
    const size_t header = npy.size() - logits.size() * sizeof(float);
    for (size_t row = 0; row < tokens.size(); ++row) {
      double worst = 0;
      for (size_t i = row * runner.vocabulary(); i < (row + 1) * runner.vocabulary(); ++i) {
        float expected;
        std::memcpy(&expected, npy.data() + header + i * sizeof expected, sizeof expected);
        worst = std::max<double>(worst, std::abs(logits[i] - expected));
      }
      line.count(worst < kLogits, "position " + std::to_string(row) + " is off by " + std::to_string(worst));
    }
  });
}

/// F32: every logit at the listed positions. Quantised: clear choices there, and the text's likelihood.
void check_synth(Line& line, const std::string& name, const json::object& expected, const Ids& tokens,
                 ModelRunner& runner) {
  const auto logits = runner.logits(tokens);
  const uint32_t vocabulary = runner.vocabulary();
  const bool exact = name.ends_with("-f32");
  for (const auto& [position, values] : expected.at("logits").as_object()) {
    const auto want = json::value_to<std::vector<float>>(values);
    const auto got = tools::row_of(logits, std::stoul(std::string(position)), vocabulary);
    double worst = 0;
    for (size_t i = 0; i < want.size(); ++i) worst = std::max<double>(worst, std::abs(got[i] - want[i]));
    const double bound = name.starts_with("gemma") ? kGemmaLogits : kLogits;
    const bool good =
        exact ? worst < bound : tools::margin_of(want) < kClear || tools::best_of(got) == tools::best_of(want);
    line.count(good, "position " + std::string(position) + " is off by " + std::to_string(worst));
  }
  if (exact) return;
  const double want = expected.at("mean_nll").to_number<double>(), got = tools::mean_nll(logits, tokens, vocabulary);
  line.count(std::abs(got - want) < kLikelihood * want,
             "mean nll " + std::to_string(got) + ", expected " + std::to_string(want));
}

std::vector<Line> synth_lines(const Options& options) {
  std::vector<Line> lines;
  const json::value all = json::parse(read_file(options.data + "/synth/reference_logits.json"));
  const Ids tokens = ids_of(all.at("tokens"));
  for (const auto& [key, expected] : all.at("models").as_object()) {
    const std::string name(key), path = options.data + "/synth/" + name + ".gguf";
    if (!std::filesystem::exists(path)) continue;  // llama256-f32: figures alone
    lines.push_back(guarded(name, [&](Line& line) {
      ModelRunner runner = open(path, name.ends_with("-f32") ? shm::KvType::f32 : shm::KvType::f16);
      check_synth(line, name, expected.as_object(), tokens, runner);
    }));
  }
  return lines;
}

/// The peer's greedy continuations, teacher-forced; of quantised weights up to the first choice that is not clear.
Line greedy_line(const Options& options) {
  return guarded("stories260K, greedy texts", [&](Line& line) {
    const json::value all = json::parse(read_file(options.data + "/reference/greedy_stories260K.json"));
    for (const json::value& run : all.at("runs").as_array()) {
      const std::string name(run.at("model").as_string());
      ModelRunner runner = open(options.data + "/models/" + name + ".gguf", shm::KvType::f16);
      Ids tokens = ids_of(run.at("prompt_tokens"));
      const size_t prompt = tokens.size();
      const Ids want = ids_of(run.at("out_tokens"));
      tokens.insert(tokens.end(), want.begin(), want.end());
      const auto logits = runner.logits(tokens);
      const Ids ours = runner.model().tokenizer()->encode(run.at("prompt").as_string());
      bool good = ours == Ids(tokens.begin(), tokens.begin() + prompt);
      for (size_t i = 0; i < want.size() && good; ++i) {
        const auto row = tools::row_of(logits, prompt - 1 + i, runner.vocabulary());
        const bool exact = name == "stories260K" || name == "stories260K-F16";
        if (!exact && tools::margin_of(row) < kClear) break;
        good = tools::best_of(row) == want[i];
      }
      line.count(good, name + ": " + std::string(run.at("prompt").as_string()).substr(0, 40));
    }
  });
}

/// "models/X.gguf … ppl 4.2 … tokens_full 600 … used 512"
std::vector<Line> perplexity_lines(const Options& options) {
  std::vector<Line> lines;
  const std::string text = read_file(options.data + "/text/tinystories_sample.txt");
  for (const std::string& row : split(read_file(options.data + "/reference/ppl_tinystories_sample.txt"), "\n")) {
    std::istringstream words(row);
    std::map<std::string, double> figures;
    std::string file, word, before;
    words >> file;
    while (words >> word) {
      char* end = nullptr;
      const double number = std::strtod(word.c_str(), &end);
      if (*end == '\0') figures[before] = number;
      before = word;
    }
    if (!figures.contains("ppl")) continue;
    const std::string name = std::filesystem::path(file).stem();
    lines.push_back(guarded(name + ", perplexity", [&](Line& line) {
      ModelRunner runner = open(options.data + "/" + file, shm::KvType::f16);
      Ids tokens = runner.model().tokenizer()->encode(text);
      line.count(tokens.size() == static_cast<size_t>(figures["tokens_full"]),
                 "it has " + std::to_string(tokens.size()) + " tokens");
      tokens.resize(static_cast<size_t>(figures["used"]));
      const double ours = std::exp(tools::mean_nll(runner.logits(tokens), tokens, runner.vocabulary()));
      line.count(std::abs(ours / figures["ppl"] - 1) < kPerplexity,
                 std::to_string(ours) + ", expected " + std::to_string(figures["ppl"]));
    }));
  }
  return lines;
}

std::vector<Line> file_lines(const Options& options) {
  const std::string models = options.data + "/models/";
  Line big{"models", "big-endian, to refuse"};
  try {
    format::Gguf::open(models + "stories260K-be.gguf");
    big.fail("was accepted");
  } catch (const format::FormatError&) {
    big.pass();
  }
  const Line split_file = guarded("split in three", [&](Line& line) {
    const Ids tokens{1, 400, 300, 200, 100};
    ModelRunner whole = open(models + "stories260K.gguf", shm::KvType::f16);
    ModelRunner parts = open(models + "stories260K-split-00001-of-00003.gguf", shm::KvType::f16);
    line.count(whole.logits(tokens) == parts.logits(tokens), "its logits are not those of the whole");
  });
  Line small{"models", "llama-2-tiny-random"};
  try {
    ModelRunner runner = open(models + "llama-2-tiny-random.f16.gguf", shm::KvType::f16);
    small.pass();
  } catch (const format::FormatError&) {
    small.leave_out("its heads have 4 values, those of published models 32 and more; refused by name");
  }
  return {big, split_file, small};
}

}  // namespace

std::vector<Line> model_lines(const Options& options) {
  std::vector<Line> lines{gold_line(options), greedy_line(options)};
  for (auto part : {perplexity_lines, synth_lines, file_lines})
    for (Line& line : part(options)) lines.push_back(std::move(line));
  return lines;
}

}  // namespace ellm::conformance
