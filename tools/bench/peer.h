// Somebody else's engine under the same work.
#pragma once
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "tools/bench/work.h"

namespace ellm::bench {

/// What is measured: one model file on so many threads.
struct PeerTask {
  std::string model;  // path
  std::string label;  // as the user named it
  uint32_t threads = 1;
  Fill fill = Fill::copies;
};

class Peer {
 public:
  virtual ~Peer() = default;
  virtual std::string name() const = 0;
  /// The variants that it is measured in: KV types, or one that has no name.
  virtual std::vector<std::string> variants(const Work& work) const = 0;
  /// Seconds of each of the works, which have depth, batch or kind in common only where that helps; absent: it cannot
  /// do it. Throws std::runtime_error where a program or server fails.
  virtual std::vector<std::optional<double>> run(const PeerTask& task, std::span<const Work> works,
                                                 const std::string& variant) = 0;
  /// What was equal and what was not, for the report.
  virtual std::string conditions() const = 0;
};

/// DIR with llama-bench, batched-bench (or llama-batched-bench) and perhaps depth-bench. Throws where none is there.
std::unique_ptr<Peer> make_llama_cpp_peer(const std::string& directory, std::vector<std::string> kv_types);
/// A server with OpenAI's API, "http://host:port/v1".
std::unique_ptr<Peer> make_endpoint_peer(const std::string& url, const std::string& model, const std::string& key);

}  // namespace ellm::bench
