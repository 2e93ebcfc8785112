// ellm-eval, started by `ellm eval`: what choices cost in quality. `ellm eval kv MODEL`: KV types against f16.
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <boost/json.hpp>
#include <cstdio>
#include <fstream>
#include <iterator>
#include <string>
#include <vector>

#include "client/describe/describe.h"
#include "client/places.h"
#include "daemon/format/gguf.h"
#include "tools/eval/kv.h"

namespace {

using namespace ellm;

struct Options {
  std::string model;
  std::vector<std::string> texts = {"/usr/share/common-licenses/GPL-3"};  // on every Debian machine
  std::vector<std::string> types = {"int8", "int4"};
  uint32_t tokens = 512, threads = 0;
  std::string kernels = "auto";
  bool as_served = false, json = false;
};

// As `ellm` ends (<sysexits.h>).
constexpr int kData = 65, kNoInput = 66, kInternal = 70;

struct NoInput : std::runtime_error {
  using std::runtime_error::runtime_error;
};

std::string read_text(const std::string& path) {
  std::ifstream in(path, std::ios::binary);
  if (!in) throw NoInput("cannot read " + path);
  return {std::istreambuf_iterator<char>(in), {}};
}

void print_row(const Options& o, const std::string& text, const eval::KvResult& r, double base) {
  if (o.json) {
    const boost::json::object row{{"model", o.model},           {"text", text},
                                  {"kv_type", r.type},          {"bytes_per_token", r.bytes_per_token},
                                  {"perplexity", r.perplexity}, {"perplexity_ratio", r.perplexity / base},
                                  {"kl_mean", r.kl_mean},       {"kl_99_9", r.kl_999}};
    std::printf("%s\n", boost::json::serialize(row).c_str());
    return;
  }
  std::printf("%-10s %8.0f %12.4f %+8.2f %% %10.6f %10.4f\n", r.type.c_str(), r.bytes_per_token, r.perplexity,
              100 * (r.perplexity / base - 1), r.kl_mean, r.kl_999);
}

/// A file, or a name in the models directory.
std::string model_path(const std::string& model) {
  if (::access(model.c_str(), R_OK) == 0) return model;
  const std::string directory = client::models_directory(), path = directory + "/" + model + ".gguf";
  if (::access(path.c_str(), R_OK) != 0)
    throw NoInput("there is no model '" + model + "': it is no file that can be read, nor is " + path);
  return path;
}

void evaluate(const Options& o) {
  std::vector<shm::KvTypes> types;
  for (const std::string& name : o.types) types.push_back(*shm::find_kv_types(name));
  const runtime::Topology topology = runtime::read_topology();
  const uint32_t threads = o.threads != 0 ? o.threads : static_cast<uint32_t>(topology.default_threads());
  const auto model = model::Model::load(model_path(o.model), {.lock = false,
                                                              .threads = threads,
                                                              .key_means = true,
                                                              .state_directory = client::state_directory(),
                                                              .float_weights = !o.as_served});
  runtime::WorkerPool pool(topology, threads);
  for (const std::string& text : o.texts) {
    std::vector<uint32_t> tokens = model->tokenizer()->encode(read_text(text), {.add_special = false});
    if (tokens.size() > o.tokens) tokens.resize(o.tokens);
    if (!o.json) {
      std::printf("%s, %zu tokens of %s, weights %s; means from position 8 on\n", o.model.c_str(), tokens.size(),
                  text.c_str(), o.as_served ? "as served" : "dequantised to F16");
      std::printf("%-10s %8s %12s %10s %10s %10s\n", "KV", "bytes/t", "perplexity", "", "KL mean", "KL 99.9 %");
    }
    const auto results = eval::evaluate_kv(model, pool, o.kernels, tokens, types);
    for (const eval::KvResult& r : results) print_row(o, text, r, results[0].perplexity);
  }
}

int complain(const std::exception& e, int code) {
  std::fprintf(stderr, "ellm-eval: %s\n", e.what());
  return code;
}

std::string check_types(const std::string& text) {
  return shm::find_kv_types(text) ? "" : "'" + text + "' is no KV type: f16, int8, int4, f32, or two as K:V";
}

}  // namespace

int main(int argc, char** argv) {
  CLI::App app{
      "Measures what choices cost in a model's answers. kv: perplexity, and KL divergence from f16, of keys and values "
      "stored as each type."};
  app.name("ellm-eval");
  app.footer(
      "Weights are dequantised to F16, so that activations are not rounded: their rounding hides what the cache costs.\n\n"
      "Example:\n  ellm eval kv qwen-0.5b --text report.txt --tokens 2048 --kv-type int8 --kv-type int8:int4");
  Options o;
  std::string what;
  app.add_option("WHAT", what, "kv")->required()->check(CLI::IsMember({"kv"}));
  app.add_option("MODEL", o.model, "A name in the models directory, or a GGUF file")->required();
  app.add_option("--text", o.texts, "A text file; may be given again")->type_name("FILE")->capture_default_str();
  app.add_option("--kv-type", o.types, "A type beside f16, or two as K:V; may be given again")
      ->capture_default_str()
      ->check(check_types);
  app.add_option("-n,--tokens", o.tokens, "Tokens of each text")
      ->capture_default_str()
      ->check(CLI::Range(10u, 1u << 20));
  app.add_option("-t,--threads", o.threads, "Compute threads (default: the physical cores)");
  app.add_option("--kernels", o.kernels, "auto, scalar, avx2, avx512, amx")->capture_default_str();
  app.add_flag("--as-served", o.as_served, "Keep the weights' types, and so rounded activations");
  app.add_flag("--json", o.json, "One JSON object per line");
  if (describe::describe_if_asked(app, argc, argv)) return 0;
  CLI11_PARSE(app, argc, argv);
  try {
    evaluate(o);
    return 0;
  } catch (const NoInput& e) {
    return complain(e, kNoInput);
  } catch (const format::FormatError& e) {
    return complain(e, kData);
  } catch (const model::LoadError& e) {
    return complain(e, kData);
  } catch (const std::exception& e) {
    return complain(e, kInternal);
  }
}
