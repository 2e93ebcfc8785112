// Reads a JSON file of reference data.
#pragma once
#include <boost/json.hpp>
#include <fstream>
#include <sstream>
#include <stdexcept>
#include <string>
#include <vector>

namespace ellm::tests {

inline boost::json::value read_json(const std::string& path) {
  std::ifstream in(path);
  if (!in) throw std::runtime_error("cannot open " + path);
  std::stringstream text;
  text << in.rdbuf();
  return boost::json::parse(text.str());
}

template <typename T>
std::vector<T> numbers(const boost::json::value& list) {
  std::vector<T> out;
  for (const auto& v : list.as_array())
    out.push_back(v.is_double() ? static_cast<T>(v.as_double()) : static_cast<T>(v.to_number<int64_t>()));
  return out;
}

}  // namespace ellm::tests
