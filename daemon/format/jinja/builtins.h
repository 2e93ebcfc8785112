// The functions, filters, tests and methods of the sandbox: nothing but what stands in these tables can be called.
#pragma once
#include <span>
#include <string_view>

#include "daemon/format/jinja/runtime.h"

namespace ellm::format::jinja {

struct Builtin {
  std::string_view name;
  std::string_view parameters;  // see Runtime::bind; without the value that a filter, test or method is applied to
  Value (*run)(Runtime& rt, const Value& self, Arguments& args);
};

/// Each is null where there is none of that name.
const Builtin* find_filter(std::string_view name);
const Builtin* find_test(std::string_view name);
const Builtin* find_global(std::string_view name);
const Builtin* find_str_method(std::string_view name);
const Builtin* find_object_method(Shape shape, std::string_view name);

using BuiltinTable = std::span<const Builtin>;
BuiltinTable text_filters();
BuiltinTable layout_filters();
BuiltinTable sequence_filters();
BuiltinTable select_filters();
BuiltinTable number_filters();
BuiltinTable json_filters();
BuiltinTable tests();
BuiltinTable globals();
BuiltinTable str_methods();
BuiltinTable str_split_methods();
BuiltinTable str_predicates();
BuiltinTable list_methods();
BuiltinTable tuple_methods();
BuiltinTable dict_methods();
BuiltinTable loop_methods();
BuiltinTable cycler_methods();

}  // namespace ellm::format::jinja
