// The best of a row of values, best first, without sorting the row: blocks of it are passed by their largest value, and
// what was found is sorted as far as it is looked at. Equal values go by the lowest id; NaN counts as -infinity.
#pragma once
#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

namespace ellm::model {

class BestTokens {
 public:
  /// Looks at a row, which must stay; finds nothing yet.
  void look_at(std::span<const float> values);
  /// The same as if each value x were (x - peak) / temperature.
  void look_at_scaled(std::span<const float> values, float peak, float temperature);

  /// Finds all values of at least `floor`, or the `count` best.
  void find_above(float floor);
  void find_best(size_t count);
  /// Lowers the floor; what was found stays, and stays sorted.
  void find_down_to(float floor);
  /// Leaves the first so many of those found.
  void keep_first(size_t count);

  size_t size() const { return found_.size(); }
  uint32_t id(size_t i) { return static_cast<uint32_t>(at(i)); }
  float value(size_t i);

 private:
  uint64_t at(size_t i);
  void sort_until(size_t end);

  std::span<const float> values_;
  float peak_ = 0, temperature_ = 1;
  std::vector<float> largest_, ranks_;  // largest_: of each block
  std::vector<uint64_t> found_;         // the value's place from above, then its id
  float floor_ = 0;                     // of those found
  size_t sorted_ = 0;                   // of found_
};

}  // namespace ellm::model
