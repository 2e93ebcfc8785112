// llama.cpp by its own programs, each a process: llama-bench for single sequences (depth-bench, where it is there,
// answers like it but copies K and V to get to a depth: tools/bench/peer/depth_bench.cc), batched-bench for several.
#include <sys/stat.h>

#include <algorithm>
#include <boost/json.hpp>
#include <initializer_list>
#include <map>
#include <stdexcept>

#include "tools/bench/peer.h"
#include "tools/bench/program.h"

namespace ellm::bench {
namespace {

constexpr uint32_t kShallow = 1024;  // below, K and V are too few for their type to matter

bool exists(const std::string& path) {
  struct stat s;
  return ::stat(path.c_str(), &s) == 0 && S_ISREG(s.st_mode);
}

class LlamaCppPeer : public Peer {
 public:
  LlamaCppPeer(const std::string& directory, std::vector<std::string> kv_types) : kv_types_(std::move(kv_types)) {
    single_ = find(directory, {"llama-bench"});
    depth_ = find(directory, {"depth-bench"});
    batched_ = find(directory, {"llama-batched-bench", "batched-bench"});
    if (single_.empty() && batched_.empty())
      throw std::runtime_error("--peer: neither llama-bench nor llama-batched-bench is in " + directory);
  }

  std::string name() const override { return "llama.cpp"; }
  std::string conditions() const override {
    return "the same file and threads; flash attention on where its KV is not f16; the best of its KV types at each depth";
  }
  std::vector<std::string> variants(const Work& work) const override {
    if (work.longest() <= kShallow) return {kv_types_.front()};
    return kv_types_;
  }

  std::vector<std::optional<double>> run(const PeerTask& task, std::span<const Work> works,
                                         const std::string& variant) override {
    std::vector<std::optional<double>> out(works.size());
    std::map<uint32_t, std::vector<size_t>> single;  // by depth
    for (size_t i = 0; i < works.size(); ++i) {
      const Work& w = works[i];
      if (w.batch == 1 && w.kind != Kind::end_to_end) single[w.depth].push_back(i);
      else out[i] = run_batched(task, w, variant);
    }
    for (const auto& [depth, indexes] : single) run_single(task, works, indexes, depth, variant, out);
    return out;
  }

 private:
  static std::string find(const std::string& directory, std::initializer_list<const char*> names) {
    for (const char* name : names)
      if (exists(directory + "/" + name)) return directory + "/" + name;
    return {};
  }
  static std::vector<std::string> command_of(const std::string& program, const PeerTask& task, const std::string& kv,
                                             std::initializer_list<std::string> options) {
    std::vector<std::string> command = {program, "-m", task.model, "-t", std::to_string(task.threads)};
    command.insert(command.end(), options);
    command.insert(command.end(), {"-ctk", kv, "-ctv", kv});
    if (kv != "f16") command.insert(command.end(), {"-fa", "on"});
    return command;
  }

  void run_single(const PeerTask& task, std::span<const Work> works, const std::vector<size_t>& indexes, uint32_t depth,
                  const std::string& kv, std::vector<std::optional<double>>& out) const {
    const std::string& program = depth > 0 && task.fill == Fill::copies && !depth_.empty() ? depth_ : single_;
    if (program.empty()) return;
    std::string prompts, generates;
    for (const size_t i : indexes) {
      const Work& w = works[i];
      std::string& list = w.kind == Kind::prefill ? prompts : generates;
      list += (list.empty() ? "" : ",") + std::to_string(w.kind == Kind::prefill ? w.prompt : w.generate);
    }
    const auto or_none = [](const std::string& list) { return list.empty() ? "0" : list; };
    const std::vector<std::string> command = command_of(
        program, task, kv,
        {"-p", or_none(prompts), "-n", or_none(generates), "-d", std::to_string(depth), "-r", "1", "-o", "json"});
    const boost::json::value rows = boost::json::parse(run_program(command));
    for (const auto& row : rows.as_array()) {
      const double seconds = row.at("samples_ns").as_array().at(0).to_number<double>() * 1e-9;
      for (const size_t i : indexes) {
        const Work& w = works[i];
        const bool prefill = w.kind == Kind::prefill;
        if (row.at("n_prompt").to_number<uint32_t>() == (prefill ? w.prompt : 0) &&
            row.at("n_gen").to_number<uint32_t>() == (prefill ? 0 : w.generate))
          out[i] = seconds;
      }
    }
  }

  /// Prompts of `depth` in a decode, of `prompt` in the whole; it knows no depth before a prompt.
  std::optional<double> run_batched(const PeerTask& task, const Work& w, const std::string& kv) const {
    if (batched_.empty() || w.kind == Kind::prefill || (w.kind == Kind::end_to_end && w.depth > 0)) return std::nullopt;
    const uint32_t prompt = w.kind == Kind::decode ? std::max(w.depth, 1u) : w.prompt;
    const std::string context = std::to_string((prompt + w.generate) * w.batch + 64 * w.batch);
    std::vector<std::string> command =
        command_of(batched_, task, kv,
                   {"-c", context, "-npp", std::to_string(prompt), "-ntg", std::to_string(w.generate), "-npl",
                    std::to_string(w.batch), "--output-format", "jsonl"});
    // One prompt whose K and V are copied for each sequence: it has no other way to share them.
    if (w.kind == Kind::decode && (w.shared || task.fill == Fill::copies)) command.push_back("-pps");
    for (int tries = 0; tries < 3; ++tries) {  // it prints on a thread that does not always live until its end
      const std::string text = run_program(command);
      const size_t at = text.find("{\"n_kv_max\"");
      if (at == text.npos) continue;
      const boost::json::value row = boost::json::parse(text.substr(at, text.find('\n', at) - at));
      return row.at(w.kind == Kind::decode ? "t_tg" : "t").to_number<double>();
    }
    return std::nullopt;
  }

  std::string single_, depth_, batched_;
  std::vector<std::string> kv_types_;
};

}  // namespace

std::unique_ptr<Peer> make_llama_cpp_peer(const std::string& directory, std::vector<std::string> kv_types) {
  return std::make_unique<LlamaCppPeer>(directory, std::move(kv_types));
}

}  // namespace ellm::bench
