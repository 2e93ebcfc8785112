// The pprint filter: values over several lines as Python's pprint module lays them out.
#pragma once
#include <string>

#include "daemon/format/jinja/runtime.h"

namespace ellm::format::jinja {

std::string pretty(Runtime& rt, const Value& v);

}  // namespace ellm::format::jinja
