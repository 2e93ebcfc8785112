#include "tools/bench/options.h"

#include <CLI/CLI.hpp>
#include <algorithm>
#include <cstdio>
#include <stdexcept>

#include "shm/geometry.h"
#include "tools/bench/mixture.h"
#include "tools/bench/shape.h"

namespace ellm::bench {
namespace {

std::string check_kv(const std::string& text) {
  return shm::find_kv_types(text) ? "" : "'" + text + "' is no KV type: f16, int8, int4, f32, or two as K:V";
}

/// "2048:512"
Work parse_end_to_end(const std::string& text) {
  unsigned prompt = 0, generate = 0;
  char rest = 0;
  if (std::sscanf(text.c_str(), "%u:%u%c", &prompt, &generate, &rest) != 2 || prompt == 0 || generate == 0)
    throw std::runtime_error("--end-to-end: '" + text + "' is not PROMPT:GENERATE, as in 2048:512");
  return {Kind::end_to_end, prompt, generate};
}

void declare_work(CLI::App& app, Options& o) {
  app.add_option("-p,--prompt", o.prompts, "Tokens of a prefill")->delimiter(',')->group("Work");
  app.add_option("-n,--generate", o.generates, "Steps of a decode")->delimiter(',')->group("Work");
  app.add_option("--end-to-end", o.end_to_end, "PROMPT:GENERATE, as in 2048:512")->delimiter(',')->group("Work");
  app.add_option("-d,--depth", o.depths, "Tokens already in the context, of each")
      ->delimiter(',')
      ->capture_default_str()
      ->group("Work");
  app.add_option("-b,--batch", o.batches, "Sequences that decode together")
      ->delimiter(',')
      ->capture_default_str()
      ->group("Work");
  app.add_flag("--shared", o.shared,
               "Beside each batch behind a depth also one whose sequences have those tokens in common")
      ->group("Work");
  app.add_option(
         "--set", o.sets,
         "quick (if nothing else is asked for), depth, batch, cost (input 2,048, output 512, to 32K of context, batch 1 to 32), reach")
      ->delimiter(',')
      ->check(CLI::IsMember(std::vector<std::string>(std::begin(kWorkSets), std::end(kWorkSets))))
      ->group("Work");
  app.add_flag("--reach", o.reach, "The whole table: --set reach --cold-start, and shapes where no model is named")
      ->group("Work");
  app.add_flag("--cold-start", o.cold_start, "Also the time to load, beside copying the file")->group("Work");
  app.add_flag("--limits", o.limits_only, "Only what the machine can do at most")->group("Work");
  app.add_option("--kv-type", o.kv_types, "f16, int8, int4, f32, or two as K:V")
      ->delimiter(',')
      ->capture_default_str()
      ->check(check_kv)
      ->group("Work");
  app.add_option("--fill", o.fill,
                 "Where the tokens before come from: copies of the K and V of a prefill of 512, or a prefill of all")
      ->capture_default_str()
      ->check(CLI::IsMember({"copies", "prefill"}))
      ->group("Work");
}

}  // namespace

void declare_options(CLI::App& app, Options& o) {
  app.name("ellm bench");
  app.footer(
      "A figure is a median; beside it stand its spread and the share of what the machine can do: bytes of weights, keys and values over its\n"
      "read bandwidth, operations over the peak of the instructions that they take. Both are measured first.\n\n"
      "Examples:\n  ellm bench qwen-0.5b\n"
      "  ellm bench --shape llama-3.1-8b:q4_k_m --set depth,batch --html report.html\n"
      "  ellm bench qwen-0.5b --peer ~/.cache/ellm-test/peer/bin            # llama.cpp on the same file, interleaved\n"
      "  ellm bench qwen-1.5b --set cost --peer http://gpu:8000/v1 --price 0.40,2.50\n\n"
      "Shapes: " +
      shape_names() + "\nTheir types: " + mixture_names());
  app.add_option("MODEL", o.models,
                 "Names in the models directory, or GGUF files (default: the smallest that is installed)");
  app.add_option("--shape", o.shapes,
                 "Random weights of a real shape, NAME:TYPE, as in llama-3.2-1b:q4_0; or JSON, or @FILE with it")
      ->type_name("SHAPE");
  app.add_option("--shape-directory", o.shape_directory, "Where their files are kept (default: ~/.cache/ellm/shapes)")
      ->type_name("DIR");
  app.add_option("-t,--threads", o.threads, "Compute threads (default: the physical cores)");
  app.add_option("-r,--repetitions", o.repetitions, "Of everything, interleaved with the peer's")
      ->capture_default_str()
      ->check(CLI::Range(1u, 1000u));
  app.add_option("--kernels", o.kernels, "Instruction set; without it anything but the best is an error")
      ->check(CLI::IsMember({"auto", "scalar", "avx2", "avx512", "amx"}));
  declare_work(app, o);
  app.add_option("--peer", o.peer,
                 "Directory of llama.cpp's programs, or URL of a server with OpenAI's API ($OPENAI_API_KEY)")
      ->group("Beside another");
  app.add_option("--peer-kv", o.peer_kv, "llama.cpp's KV types; the best counts")
      ->delimiter(',')
      ->capture_default_str()
      ->group("Beside another");
  app.add_option("--peer-model", o.peer_model, "The server's name of the model (default: the first that it lists)")
      ->group("Beside another");
  app.add_option("--price", o.prices, "Of an hour of this machine, and of the peer's")
      ->delimiter(',')
      ->expected(1, 2)
      ->group("Beside another");
  app.add_flag("--json", o.json, "One JSON document")->group("Output");
  app.add_option("--html", o.html, "Also a report with curves")->type_name("FILE")->group("Output");
}

std::vector<Work> works_of(const Options& o) {
  std::vector<Work> works;
  const auto add = [&](Work w) {
    if (std::ranges::find(works, w) != works.end()) return;
    works.push_back(w);
    if (!o.shared || w.batch == 1 || w.depth == 0) return;
    w.shared = true;
    works.push_back(w);
  };
  std::vector<std::string> sets = o.sets;
  if (o.reach) sets.push_back("reach");
  if (sets.empty() && o.prompts.empty() && o.generates.empty() && o.end_to_end.empty() && !o.cold_start)
    sets.push_back("quick");
  for (const std::string& set : sets)
    for (const Work& w : work_set(set)) add(w);
  for (const uint32_t depth : o.depths) {
    for (const uint32_t p : o.prompts)
      if (p > 0) add({Kind::prefill, p, 0, depth, 1});
    for (const uint32_t batch : o.batches) {
      if (batch == 0) throw std::runtime_error("--batch: a batch of 0 sequences");
      for (const uint32_t n : o.generates)
        if (n > 0) add({Kind::decode, 0, n, depth, batch});
      for (const std::string& text : o.end_to_end) {
        Work w = parse_end_to_end(text);
        w.depth = depth, w.batch = batch;
        add(w);
      }
    }
  }
  return works;
}

}  // namespace ellm::bench
