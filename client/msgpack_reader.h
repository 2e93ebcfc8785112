// Pulls values out of a msgpack body in order, in place. Nothing is allocated and nothing recurses: a header that
// claims more than the body holds is refused before anyone trusts its count. Source: the msgpack specification.
#pragma once
#include <cstdint>
#include <stdexcept>
#include <string>
#include <string_view>

namespace ellm::client {

/// What is wrong with a body; the decoder puts the field's path in front.
class MalformedBody : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

class MsgpackReader {
 public:
  explicit MsgpackReader(std::string_view body) : body_(body) {}

  enum class Kind { nil, boolean, integer, floating, text, array, map, extension, invalid };
  Kind peek() const;  // throws MalformedBody at the end of the body
  size_t left() const { return body_.size() - at_; }

  // Each throws MalformedBody where the next value is of another kind, out of range or cut off.
  uint64_t read_uint(uint64_t max);
  double read_float();  // integers too
  bool read_bool();
  std::string_view read_text();  // str or bin
  uint32_t read_array();         // its count, which is at most left()
  void skip();                   // any value, whole

 private:
  uint64_t big_endian(size_t bytes);
  std::string_view take(size_t bytes);
  [[noreturn]] void unexpected(const char* wanted) const;
  uint64_t skip_one();

  std::string_view body_;
  size_t at_ = 0;
};

}  // namespace ellm::client
