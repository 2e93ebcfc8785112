// Sorting by keys, for filters and list.sort.
#pragma once
#include <vector>

#include "daemon/format/jinja/runtime.h"

namespace ellm::format::jinja {

struct Keyed {
  Value key;
  Value value;
};

/// Lower case of a string, anything else as it is.
Value ignore_case(Runtime& rt, const Value& v);
/// The values in the order of their keys; stable, also in reverse.
std::vector<Value> sorted(Runtime& rt, std::vector<Keyed> items, bool reverse);

}  // namespace ellm::format::jinja
