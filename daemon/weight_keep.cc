// See weight_keep.h.
#include "daemon/weight_keep.h"

#include <utility>

#include "daemon/notify.h"
#include "shm/sealed_memory.h"

namespace ellm::daemon {
namespace {

using Place = KeptMemory::Place;

}  // namespace

WeightKeep::WeightKeep(const Config& config, std::map<std::string, int> stored)
    : memory_(config.memory.keep != "off", shm::kWeightsPrefix, std::move(stored)),
      in_small_pages_(config.memory.keep == "always"), policy_(config.memory.policy) {}

model::WeightPlace WeightKeep::place(const std::string& model, const std::string& digest) {
  model::WeightPlace place;
  if (!keeps()) return place;
  place.keep = true;
  place.in_small_pages = in_small_pages_;
  place.fingerprint = "files " + digest + " memory " + policy_;
  if (memory_.place() == Place::shared_memory) {
    place.name = memory_.name(model);
    memory_.wait_for_the_dead(model);
  } else {
    place.fd = memory_.claim(model);
  }
  return place;
}

std::string WeightKeep::loaded(const std::string& model, const model::WeightState& state,
                               std::vector<std::string>& warnings) {
  if (memory_.place() == Place::fd_store && !state.taken_over) {
    if (!state.refused.empty()) memory_.forget(model);
    if (state.kept) store_descriptor(memory_.name(model), state.fd);
  }
  if (!state.problem.empty())
    warnings.push_back("model '" + model + "': a restart will load its weights anew: " + state.problem);
  if (state.taken_over) return "model '" + model + "': its weights are still there";
  if (!state.refused.empty())
    return "model '" + model + "': the weights of an earlier run are dropped: " + state.refused;
  return "";
}

void WeightKeep::forget(const std::string& model) {
  memory_.forget(model);
  if (memory_.place() == Place::shared_memory) shm::SealedMemory::remove(memory_.name(model));
}

}  // namespace ellm::daemon
