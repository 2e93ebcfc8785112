// tools/model_runner.h and tools/logits.h for the tests, and models without locked memory.
#pragma once
#include <memory>
#include <string>

#include "tests/support/real_models.h"
#include "tools/logits.h"
#include "tools/model_runner.h"

namespace ellm::tests {

using tools::best_of;
using tools::log_softmax;
using tools::margin_of;
using tools::mean_nll;
using tools::ModelRunner;
using tools::row_of;
using tools::RunnerOptions;

inline std::shared_ptr<const model::Model> load_model(const std::string& path, bool key_means = false) {
  return model::Model::load(path, {.lock = false, .threads = 2, .key_means = key_means});
}

}  // namespace ellm::tests
