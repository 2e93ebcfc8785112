// The registry of the sandbox's functions.
#include "daemon/format/jinja/builtins.h"

#include <unordered_map>

namespace ellm::format::jinja {

namespace {

class Registry {
 public:
  Registry(std::initializer_list<BuiltinTable> tables) {
    for (const BuiltinTable table : tables) {
      for (const Builtin& builtin : table) by_name_.emplace(builtin.name, &builtin);
    }
  }
  const Builtin* find(std::string_view name) const {
    const auto at = by_name_.find(name);
    return at != by_name_.end() ? at->second : nullptr;
  }

 private:
  std::unordered_map<std::string_view, const Builtin*> by_name_;
};

}  // namespace

const Builtin* find_filter(std::string_view name) {
  static const Registry registry{text_filters(),   layout_filters(), sequence_filters(),
                                 select_filters(), number_filters(), json_filters()};
  return registry.find(name);
}

const Builtin* find_test(std::string_view name) {
  static const Registry registry{tests()};
  return registry.find(name);
}

const Builtin* find_global(std::string_view name) {
  static const Registry registry{globals()};
  return registry.find(name);
}

const Builtin* find_str_method(std::string_view name) {
  static const Registry registry{str_methods(), str_split_methods(), str_predicates()};
  return registry.find(name);
}

const Builtin* find_object_method(Shape shape, std::string_view name) {
  static const Registry list{list_methods()};
  static const Registry tuple{tuple_methods()};
  static const Registry dict{dict_methods()};
  static const Registry loop{loop_methods()};
  static const Registry cycler{cycler_methods()};
  switch (shape) {
    case Shape::list: return list.find(name);
    case Shape::tuple:
    case Shape::range: return tuple.find(name);
    case Shape::dict: return dict.find(name);
    case Shape::loop: return loop.find(name);
    case Shape::cycler: return cycler.find(name);
    default: return nullptr;
  }
}

}  // namespace ellm::format::jinja
