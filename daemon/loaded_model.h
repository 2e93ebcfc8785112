// A model that serves, and what one is loaded from where a client has handed its files over.
#pragma once
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "daemon/descriptor.h"
#include "daemon/format/gguf.h"
#include "daemon/model/model.h"

namespace ellm::daemon {

struct LoadedModel {
  std::string name;
  std::shared_ptr<const model::Model> model;
  uint32_t context = 0;  // tokens of one request
  std::vector<std::string> warnings;
};

/// Files that a client has handed over, open as long as this is.
struct ModelSource {
  std::vector<format::OpenFile> files;
  HandedOver held;
};

}  // namespace ellm::daemon
