// ellm-bench: how fast a model runs on this machine's CPUs, the engine alone, and beside llama.cpp's llama-bench on the same
// file, interleaved, with the ratio. Speeds are tokens per second; each is the median over the repetitions.
#include <sched.h>
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <boost/json.hpp>
#include <chrono>
#include <cstdio>
#include <string>
#include <vector>

#include "client/describe/describe.h"
#include "client/places.h"
#include "daemon/model/forward.h"
#include "daemon/model/model.h"
#include "daemon/runtime/cpu_features.h"
#include "daemon/runtime/worker_pool.h"
#include "shm/kv_pages.h"

namespace {

using namespace ellm;

struct Options {
  std::vector<std::string> models;
  uint32_t threads = 0, prompt = 512, generate = 64, depth = 0, repetitions = 3, batch = 1;
  std::string kernels = "auto", kv_type = "int8", peer;
  bool json = false;
};

double seconds_since(std::chrono::steady_clock::time_point begin) {
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
}

/// Our engine on one model: the forward pass without daemon, sampling or sockets.
class Subject {
 public:
  Subject(const std::string& path, const Options& o, const runtime::Topology& topology)
      : model_(model::Model::load(path, {.threads = o.threads, .key_means = true, .state_directory = client::state_directory()})), pool_(topology, o.threads) {
    const shm::KvTypes types = shm::find_kv_types(o.kv_type).value();
    const uint32_t tokens = o.depth + std::max(o.prompt, o.generate) + 64;
    kv_ = shm::KvPages::create({.geometry = model::page_geometry(model_->config(), types),
                                .pages = o.batch * (tokens / shm::kPageTokens + 1), .fingerprint = "bench"});
    forward_ = std::make_unique<model::ForwardPass>(model_, model::choose_kernels(o.kernels), pool_, *kv_, 512, o.batch);
  }

  double prefill(uint32_t depth, uint32_t tokens) {
    Sequence s = begin(depth);
    const auto start = std::chrono::steady_clock::now();
    feed(s, tokens);
    const double speed = tokens / seconds_since(start);
    end(s);
    return speed;
  }

  /// `batch` sequences that decode together: tokens per second of all.
  double decode(uint32_t depth, uint32_t tokens, uint32_t batch) {
    std::vector<Sequence> sequences;
    for (uint32_t i = 0; i < batch; ++i) sequences.push_back(begin(depth));
    const auto start = std::chrono::steady_clock::now();
    for (uint32_t t = 0; t < tokens; ++t) {
      std::vector<model::Chunk> chunks;
      const uint32_t token = 100 + t;
      for (Sequence& s : sequences) {
        grow(s, 1);
        chunks.push_back({{&token, 1}, s.length++, s.pages, 1});
      }
      forward_->step(chunks);
    }
    const double speed = batch * tokens / seconds_since(start);
    for (Sequence& s : sequences) end(s);
    return speed;
  }

 private:
  struct Sequence {
    std::vector<shm::PageId> pages;
    uint32_t length = 0;
  };
  void grow(Sequence& s, uint32_t tokens) {
    while (s.pages.size() * shm::kPageTokens < s.length + tokens) s.pages.push_back(kv_->allocate().value());
  }
  void feed(Sequence& s, uint32_t tokens) {
    std::vector<uint32_t> ids(tokens);
    for (uint32_t i = 0; i < tokens; ++i) ids[i] = 100 + (s.length + i) * 37 % 10000 % (model_->config().vocabulary - 100);
    for (uint32_t at = 0; at < tokens; at += 512) {
      const uint32_t n = std::min(512u, tokens - at);
      grow(s, n);
      const model::Chunk chunk{std::span(ids).subspan(at, n), s.length, s.pages, at + n == tokens ? 1u : 0u};
      forward_->step({&chunk, 1});
      s.length += n;
    }
  }
  Sequence begin(uint32_t depth) {
    Sequence s;
    if (depth > 0) feed(s, depth);
    return s;
  }
  void end(Sequence& s) {
    for (const shm::PageId page : s.pages) kv_->release(page);
  }

  std::shared_ptr<const model::Model> model_;
  runtime::WorkerPool pool_;
  std::unique_ptr<shm::KvPages> kv_;
  std::unique_ptr<model::ForwardPass> forward_;
};

/// Lets child processes use every CPU that this process began with: the worker pool has pinned the calling thread.
class UnpinnedScope {
 public:
  UnpinnedScope() { ::sched_getaffinity(0, sizeof pinned_, &pinned_); ::sched_setaffinity(0, sizeof original_, &original_); }
  ~UnpinnedScope() { ::sched_setaffinity(0, sizeof pinned_, &pinned_); }
  static void remember() { ::sched_getaffinity(0, sizeof original_, &original_); }

 private:
  static inline cpu_set_t original_;
  cpu_set_t pinned_;
};

/// One run of llama-bench: (prefill, decode) in tokens per second.
std::pair<double, double> run_peer(const std::string& path, const Options& o) {
  std::string command = "'" + o.peer + "' -m '" + path + "' -t " + std::to_string(o.threads) + " -p " + std::to_string(o.prompt) + " -n " +
                        std::to_string(o.generate) + " -d " + std::to_string(o.depth) + " -r 1 -o json 2>/dev/null";
  const UnpinnedScope unpinned;
  FILE* pipe = ::popen(command.c_str(), "r");
  if (pipe == nullptr) throw std::runtime_error("cannot start " + o.peer);
  std::string text;
  char block[4096];
  for (size_t n; (n = std::fread(block, 1, sizeof block, pipe)) > 0;) text.append(block, n);
  if (::pclose(pipe) != 0) throw std::runtime_error("failed: " + command);
  std::pair<double, double> out{0, 0};
  const boost::json::value rows = boost::json::parse(text);
  for (const auto& row : rows.as_array()) {
    (row.at("n_prompt").as_int64() > 0 ? out.first : out.second) = row.at("avg_ts").to_number<double>();
  }
  return out;
}

struct Series {
  std::vector<double> values;
  double median() const {
    std::vector<double> v = values;
    std::ranges::sort(v);
    return v.empty() ? 0 : v[v.size() / 2];
  }
  double low() const { return *std::ranges::min_element(values); }
  double high() const { return *std::ranges::max_element(values); }
};

void print_row(const Options& o, const std::string& model, const std::string& test, const Series& ours, const Series& peer) {
  if (o.json) {
    boost::json::object row{{"model", model}, {"test", test}, {"tokens_per_second", ours.median()}, {"low", ours.low()}, {"high", ours.high()}};
    if (!peer.values.empty()) {
      row["peer_tokens_per_second"] = peer.median();
      row["ratio"] = ours.median() / peer.median();
    }
    std::printf("%s\n", boost::json::serialize(row).c_str());
    return;
  }
  std::printf("%-14s %-14s %9.1f (%.1f … %.1f)", model.c_str(), test.c_str(), ours.median(), ours.low(), ours.high());
  if (!peer.values.empty()) {
    std::printf("   peer %9.1f (%.1f … %.1f)   ratio %.2f", peer.median(), peer.low(), peer.high(), ours.median() / peer.median());
  }
  std::printf("\n");
  std::fflush(stdout);
}

void bench_model(const std::string& given, const Options& o, const runtime::Topology& topology) {
  const std::string installed = client::models_directory() + "/" + given + ".gguf";
  const std::string path = ::access(given.c_str(), R_OK) == 0 ? given : installed;
  Subject subject(path, o, topology);
  Series prefill, decode, peer_prefill, peer_decode;
  subject.prefill(0, std::min(64u, o.prompt));   // pages and caches warm
  for (uint32_t r = 0; r < o.repetitions; ++r) {
    if (o.prompt > 0) prefill.values.push_back(subject.prefill(o.depth, o.prompt));
    if (o.generate > 0) decode.values.push_back(subject.decode(o.depth, o.generate, o.batch));
    if (o.peer.empty()) continue;
    const auto [p, d] = run_peer(path, o);
    if (o.prompt > 0) peer_prefill.values.push_back(p);
    if (o.generate > 0) peer_decode.values.push_back(d);
  }
  const std::string at = o.depth > 0 ? " @" + std::to_string(o.depth) : "";
  const std::string batch = o.batch > 1 ? " x" + std::to_string(o.batch) : "";
  if (o.batch > 1) peer_decode.values.clear();   // llama-bench knows no batch
  if (o.prompt > 0) print_row(o, given, "prefill " + std::to_string(o.prompt) + at, prefill, peer_prefill);
  if (o.generate > 0) print_row(o, given, "decode " + std::to_string(o.generate) + batch + at, decode, peer_decode);
}

}  // namespace

int main(int argc, char** argv) {
  CLI::App app{"Measures prefill and decode of models on this machine, alone or beside llama.cpp."};
  app.name("ellm bench");
  app.footer("Examples:\n  ellm bench smollm2 qwen-0.5b --peer ~/.cache/ellm-test/peer/bin/llama-bench");
  Options o;
  app.add_option("MODEL", o.models, "Names in the models directory, or GGUF files")->required();
  app.add_option("-t,--threads", o.threads, "Compute threads (default: the physical cores)");
  app.add_option("-p,--prompt", o.prompt, "Tokens of the prefill; 0: none")->capture_default_str();
  app.add_option("-n,--generate", o.generate, "Tokens to decode; 0: none")->capture_default_str();
  app.add_option("-d,--depth", o.depth, "Tokens already in the context")->capture_default_str();
  app.add_option("-b,--batch", o.batch, "Sequences that decode together")->capture_default_str();
  app.add_option("-r,--repetitions", o.repetitions, "Repetitions, interleaved with the peer's")->capture_default_str();
  app.add_option("--kernels", o.kernels, "Instruction set")->capture_default_str()->check(CLI::IsMember({"auto", "scalar", "avx2", "avx512"}));
  app.add_option("--kv-type", o.kv_type, "f16, int8, int4, f32, or two as K:V")->capture_default_str()->check([](const std::string& text) {
    return shm::find_kv_types(text) ? "" : "no KV type: " + text;
  });
  app.add_option("--peer", o.peer, "Path of llama.cpp's llama-bench");
  app.add_flag("--json", o.json, "One JSON object per line");
  if (describe::describe_if_asked(app, argc, argv)) return 0;
  CLI11_PARSE(app, argc, argv);
  UnpinnedScope::remember();
  try {
    const runtime::Topology topology = runtime::read_topology();
    if (o.threads == 0) o.threads = static_cast<uint32_t>(topology.default_threads());
    if (!o.json) {
      std::printf("%s, kernels %s, %u threads, KV %s; tokens/s: median (low … high) of %u\n", runtime::detect_cpu().model.c_str(),
                  model::choose_kernels(o.kernels).name, o.threads, o.kv_type.c_str(), o.repetitions);
    }
    for (const std::string& m : o.models) bench_model(m, o, topology);
  } catch (const std::exception& e) {
    std::fprintf(stderr, "ellm-bench: %s\n", e.what());
    return 70;
  }
}
