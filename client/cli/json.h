// Messages as JSON: a record's members have the names of its fields, so that the protocol's structs say it once.
#pragma once
#include <boost/json/array.hpp>
#include <boost/json/object.hpp>
#include <boost/json/value.hpp>
#include <string>
#include <string_view>
#include <tuple>
#include <type_traits>
#include <utility>
#include <vector>

#include "client/utf8.h"

namespace ellm::cli {

/// The double that prints as the float does (0.1f: 0.1 and not 0.10000000149).
double shortest_double(float value);

/// On one line. Numbers in their shortest form; null for NaN and infinities.
std::string serialize(const boost::json::value& value);

/// Bytes that are not UTF-8 become U+FFFD.
inline boost::json::value to_json(const std::string& text) { return boost::json::string(client::to_utf8(text)); }
inline boost::json::value to_json(float value) { return shortest_double(value); }
template <class T>
boost::json::value to_json(const std::vector<T>& list);
template <class A, class B>
boost::json::value to_json(const std::pair<A, B>& pair) {
  return boost::json::array{to_json(pair.first), to_json(pair.second)};
}

template <class T>
boost::json::value to_json(const T& value) {
  if constexpr (std::is_arithmetic_v<T>) {
    return value;
  } else if constexpr (std::is_enum_v<T>) {
    return name_of(value);
  } else {
    boost::json::object object;
    std::string_view names = T::kFieldNames;
    auto add = [&](const auto& field) {
      std::string_view name = names.substr(0, names.find(','));
      object.emplace(name.substr(0, name.find_last_not_of('_') + 1), to_json(field));  // "new_" is a keyword's name
      names.remove_prefix(std::min(names.size(), name.size() + 2));
    };
    std::apply([&](const auto&... field) { (add(field), ...); }, value.fields());
    return object;
  }
}

template <class T>
boost::json::value to_json(const std::vector<T>& list) {
  boost::json::array array;
  array.reserve(list.size());
  for (const auto& element : list) array.push_back(to_json(element));
  return array;
}

}  // namespace ellm::cli
