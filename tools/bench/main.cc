// ellm-bench, started by `ellm bench`: how fast models run on this machine, beside what it can do at most and beside
// another engine.
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <fstream>

#include "client/describe/describe.h"
#include "client/places.h"
#include "daemon/runtime/cpu_features.h"
#include "tools/bench/program.h"
#include "tools/bench/runner.h"
#include "tools/bench/shape.h"
#include "tools/bench/synthetic.h"

namespace {

using namespace ellm;
using namespace ellm::bench;

/// What the processor has, but its operating system does not give us; empty: nothing.
std::string hidden_level(kernels::Level possible) {
  const runtime::CpuFeatures processor = runtime::processor_features();
  if (processor.runs_amx() && possible < kernels::Level::amx) return "AMX";
  return processor.runs_avx512() && possible < kernels::Level::avx512 ? "AVX-512 VNNI" : "";
}

/// The level to measure. Anything but the processor's best must have been asked for.
const kernels::KernelSet& choose(const Options& o, Report& report) {
  const kernels::KernelSet& set = model::choose_kernels(o.kernels.empty() ? "auto" : o.kernels);
  const kernels::KernelSet& possible = model::choose_kernels("auto");
  const std::string hidden = hidden_level(possible.level);
  if (!hidden.empty() && o.kernels.empty())
    throw std::runtime_error("this processor has " + hidden +
                             ", but its operating system or hypervisor does not enable it: the best level here is " +
                             std::string(possible.name) + ", and --kernels " + possible.name +
                             " measures it all the same");
  if (possible.level == kernels::Level::scalar && o.kernels.empty())
    throw std::runtime_error("this processor has no AVX2: --kernels scalar measures it all the same");
  if (set.level != possible.level)
    report.warnings.push_back("kernels " + std::string(set.name) + " as asked for; this machine's best are " +
                              possible.name);
  return set;
}

std::string smallest_model() {
  std::string best;
  uintmax_t least = UINTMAX_MAX;
  std::error_code none;
  for (const auto& entry : std::filesystem::directory_iterator(client::models_directory(), none)) {
    if (entry.path().extension() != ".gguf" || entry.file_size(none) >= least) continue;
    least = entry.file_size(none);
    best = entry.path().stem();
  }
  return best;
}

std::string shape_directory(const Options& o) {
  if (!o.shape_directory.empty()) return o.shape_directory;
  const char *cache = std::getenv("XDG_CACHE_HOME"), *home = std::getenv("HOME");
  if (cache != nullptr && *cache != 0) return std::string(cache) + "/ellm/shapes";
  return home != nullptr ? std::string(home) + "/.cache/ellm/shapes" : "/tmp/ellm-shapes";
}

std::string path_of(const std::string& model) {
  return ::access(model.c_str(), R_OK) == 0 ? model : client::models_directory() + "/" + model + ".gguf";
}

/// What --reach measures where nothing is named: what the project's aims are stated for.
void name_reach(Options& o) {
  for (const char* type : {"q4_0", "q4_k_m", "q8_0", "q6_k"}) o.shapes.push_back(std::string("llama-3.2-1b:") + type);
  for (const char* model : {"qwen-0.5b", "qwen-1.5b"})
    if (::access(path_of(model).c_str(), R_OK) == 0) o.models.push_back(model);
}

std::vector<Target> targets(Options& o) {
  if (o.models.empty() && o.shapes.empty()) {
    if (o.reach) name_reach(o);
    else if (const std::string model = smallest_model(); !model.empty()) o.models = {model};
    else o.shapes = {"smollm2-135m:q4_0"};  // no model is installed
  }
  std::vector<Target> all;
  for (const std::string& text : o.shapes) {
    const ShapeRequest request = parse_shape(text);
    all.push_back({request.label(), synthesise(request, shape_directory(o))});
  }
  for (const std::string& model : o.models) {
    const std::filesystem::path file = std::filesystem::path(model).filename();
    all.push_back({file.extension() == ".gguf" ? file.stem() : file, path_of(model)});
  }
  return all;
}

void write_html(const std::string& path, const Report& report) {
  std::ofstream out(path, std::ios::binary);
  out << to_html(report);
  if (!out.flush()) throw std::runtime_error("cannot write " + path);
}

void run(Options& o) {
  Report report;
  const std::vector<Work> works = works_of(o);
  const kernels::KernelSet& set = choose(o, report);
  const std::vector<Target> all = o.limits_only ? std::vector<Target>() : targets(o);  // what is wrong with them, first
  const runtime::Topology topology = runtime::read_topology();
  runtime::WorkerPool pool(topology, o.threads != 0 ? o.threads : static_cast<uint32_t>(topology.default_threads()));
  report.cpu = runtime::detect_cpu().model, report.kernels = set.name, report.threads = pool.size();
  report.repetitions = o.repetitions;
  report.fill = o.fill == "copies" ? "keys and values of a prefill of 512, copied" : "a prefill of all";
  if (!o.prices.empty()) report.price = o.prices[0];
  if (o.prices.size() > 1) report.peer_price = o.prices[1];
  Runner runner(o, set, pool, report);
  runner.measure_limits();
  const auto print = [&](const std::string& text) {
    if (!o.json) std::fputs(text.c_str(), stdout), std::fflush(stdout);
  };
  print(limits_text(report));
  if (!o.limits_only) {
    print(table_head(report));
    for (const Target& target : all) {
      runner.measure(target, works, [&](size_t first, size_t end) {
        for (size_t i = first; i < end; ++i) print(table_row(report, report.rows[i]));
      });
      print(table_cold_start(report.models.back()));
    }
  }
  for (const std::string& w : report.warnings) std::fprintf(stderr, "ellm-bench: warning: %s\n", w.c_str());
  if (o.json) std::fputs(to_json(report).c_str(), stdout);
  if (!o.html.empty()) write_html(o.html, report);
}

}  // namespace

int main(int argc, char** argv) {
  CLI::App app{
      "Measures models on this machine: prefill, decode and both, over context, batch and KV types, beside the machine's limits and "
      "beside another engine."};
  Options options;
  declare_options(app, options);
  if (describe::describe_if_asked(app, argc, argv)) return 0;
  CLI11_PARSE(app, argc, argv);
  remember_affinity();
  try {
    run(options);
  } catch (const std::exception& e) {
    std::fprintf(stderr, "ellm-bench: %s\n", e.what());
    return 70;
  }
}
