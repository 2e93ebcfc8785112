// What a model file holds and what it would take to load it, for `ellm inspect`.
#pragma once
#include <boost/json/object.hpp>
#include <memory>
#include <string>
#include <vector>

#include "daemon/format/gguf.h"
#include "shm/geometry.h"

namespace ellm::cli {

struct Facts {
  std::shared_ptr<const format::Gguf> file;
  std::string architecture, tokenizer;  // the tokenizer's description, or what is wrong with it
  std::string chat_template;            // "yes (tools, enable_thinking)"
  uint64_t layers = 0, heads = 0, kv_heads = 0, head_dim = 0, embedding = 0, context = 0;
  uint64_t experts = 0, experts_used = 0;  // of a layer, by each token
  uint64_t weight_bytes = 0;               // in memory
  std::vector<std::string> unsupported;    // a line each

  bool has_geometry() const;
  /// Bytes of KV memory for each token of context.
  double kv_bytes_per_token(shm::KvType type) const;
};

/// Throws Failure and FormatError where the file cannot be opened; whatever else is wrong with it is among the facts.
Facts read_facts(const std::string& path);

boost::json::object facts_json(const Facts& facts, bool keys, bool tensors);
std::string facts_text(const Facts& facts, bool keys, bool tensors);

/// "NAME          value", "-" for an empty one.
std::string fact(const char* name, const std::string& value);

}  // namespace ellm::cli
