// Open files that a client has handed over, with what they are charged for.
#pragma once
#include <vector>

#include "daemon/accounts.h"
#include "shm/descriptor.h"

namespace ellm::daemon {

using shm::Descriptor;

/// What came with a frame. Closed, and no longer charged, with the last who holds it.
struct HandedOver {
  std::vector<Descriptor> descriptors;
  Charge charge;
  bool lost = false;  // more came than this process could take
};

}  // namespace ellm::daemon
