// Fills and compares any message through its fields(): fixed values for the golden files, random ones for round trips.
#pragma once
#include <bit>
#include <cmath>
#include <cstdint>
#include <random>
#include <string>
#include <tuple>
#include <type_traits>
#include <vector>

#include "client/messages.h"

namespace ellm::client::samples {

template <class E>
inline constexpr uint32_t kEnumerators = 0;
template <>
inline constexpr uint32_t kEnumerators<ErrorCode> = 11;
template <>
inline constexpr uint32_t kEnumerators<FinishReason> = 4;
template <>
inline constexpr uint32_t kEnumerators<ModelsAction> = 3;
template <>
inline constexpr uint32_t kEnumerators<CacheAction> = 6;
template <>
inline constexpr uint32_t kEnumerators<Priority> = 2;
template <class E>
inline constexpr uint32_t kFirst = std::is_same_v<E, Priority> ? 0 : 1;

/// Values that count up: every field of a message is told from its neighbours. Used for the golden files; never change
/// it.
class Counting {
 public:
  uint64_t integer(int bits) { return (count_++ * 0x9E3779B97F4A7C15u >> 7) & (~uint64_t{0} >> (64 - bits)); }
  double floating() { return 0.25 * static_cast<double>(count_++) - 1; }
  bool boolean() { return count_++ % 2 == 0; }
  std::string text() {
    static const char* const kTexts[] = {"policy", "été 日本 🙂", "", "half \xE6\x97", "line\nline"};
    return kTexts[count_++ % 5];
  }
  size_t length() { return count_++ % 3 + 1; }

 private:
  uint64_t count_ = 1;
};

class Random {
 public:
  explicit Random(uint64_t seed) : generator_(seed) {}
  uint64_t integer(int bits) {
    uint64_t value = generator_() >> (generator_() % 64);  // all magnitudes
    return value & (~uint64_t{0} >> (64 - bits));
  }
  double floating() {
    static const double kOdd[] = {0.0, -0.0, NAN, INFINITY, -INFINITY, 1e30, -1e-30, 1};
    if (generator_() % 4 == 0) return kOdd[generator_() % 8];
    return static_cast<float>(generator_()) / 1e9 - 5;
  }
  bool boolean() { return generator_() % 2; }
  std::string text() {
    std::string bytes(generator_() % (generator_() % 8 == 0 ? 70000 : 40), '\0');
    bool ascii = boolean();
    for (char& c : bytes) c = static_cast<char>(ascii ? generator_() % 128 : generator_());
    return bytes;
  }
  size_t length() { return generator_() % (generator_() % 16 == 0 ? 300 : 4); }

 private:
  std::mt19937_64 generator_;
};

template <class T, class Source>
void fill(T& value, Source& source);
template <class A, class B, class Source>
void fill(std::pair<A, B>& pair, Source& source);

template <class T, class Source>
void fill(std::vector<T>& list, Source& source) {
  list.resize(source.length());
  for (T& element : list) fill(element, source);
}
template <class A, class B, class Source>
void fill(std::pair<A, B>& pair, Source& source) {
  fill(pair.first, source), fill(pair.second, source);
}

template <class T, class Source>
void fill(T& value, Source& source) {
  if constexpr (std::is_same_v<T, std::string>) value = source.text();
  else if constexpr (std::is_same_v<T, bool>) value = source.boolean();
  else if constexpr (std::is_floating_point_v<T>) value = static_cast<T>(source.floating());
  else if constexpr (std::is_enum_v<T>) value = static_cast<T>(kFirst<T> + source.integer(32) % kEnumerators<T>);
  else if constexpr (std::is_integral_v<T>) value = static_cast<T>(source.integer(8 * sizeof(T)));
  else std::apply([&](auto&... field) { (fill(field, source), ...); }, value.fields());
}

template <class T>
bool same(const T& a, const T& b);
template <class A, class B>
bool same(const std::pair<A, B>& a, const std::pair<A, B>& b);
template <class T>
bool same(const std::vector<T>& a, const std::vector<T>& b) {
  if (a.size() != b.size()) return false;
  for (size_t i = 0; i < a.size(); i++)
    if (!same(a[i], b[i])) return false;
  return true;
}
template <class A, class B>
bool same(const std::pair<A, B>& a, const std::pair<A, B>& b) {
  return same(a.first, b.first) && same(a.second, b.second);
}

/// Equal, floats by their bits (NaN by being NaN).
template <class T>
bool same(const T& a, const T& b) {
  if constexpr (std::is_same_v<T, float>)
    return std::bit_cast<uint32_t>(a) == std::bit_cast<uint32_t>(b) || (std::isnan(a) && std::isnan(b));
  else if constexpr (std::is_same_v<T, double>)
    return std::bit_cast<uint64_t>(a) == std::bit_cast<uint64_t>(b) || (std::isnan(a) && std::isnan(b));
  else if constexpr (requires { a.fields(); })
    return [&]<size_t... I>(std::index_sequence<I...>) {
      auto x = a.fields(), y = b.fields();
      return (same(std::get<I>(x), std::get<I>(y)) && ...);
    }(std::make_index_sequence<std::tuple_size_v<decltype(a.fields())>>{});
  else return a == b;
}

template <class Source, class... M>
std::vector<Message> all_from(const Source& source, std::type_identity<std::variant<M...>>) {
  std::vector<Message> messages;
  auto one = [&](auto message, Source own) { fill(message, own), messages.emplace_back(std::move(message)); };
  (one(M{}, source), ...);
  return messages;
}
/// One of every kind, in the order of Message, each from the source's beginning (so that none depends on another's
/// fields).
template <class Source>
std::vector<Message> all(const Source& source) {
  return all_from(source, std::type_identity<Message>{});
}

inline const char* name_of(const Message& message) {
  return std::visit([](const auto& m) { return std::remove_cvref_t<decltype(m)>::kName; }, message);
}

}  // namespace ellm::client::samples
