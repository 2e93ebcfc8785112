// Python's operators on values: truth, equality, order, membership, arithmetic.
#pragma once
#include "daemon/format/jinja/runtime.h"

namespace ellm::format::jinja {

enum class CompareOp : uint8_t { eq, ne, lt, le, gt, ge, in, not_in };
enum class ArithmeticOp : uint8_t { add, subtract, multiply, divide, floor_divide, modulo, power };

bool truth(const Value& v);
bool equal(Runtime& rt, const Value& a, const Value& b);
/// Whether both are the same object, as Python's `is`.
bool same(const Value& a, const Value& b);
bool compare(Runtime& rt, CompareOp op, const Value& a, const Value& b);
bool contains(Runtime& rt, const Value& container, const Value& item);
/// Fails for what cannot be a key of a dict.
void require_hashable(Runtime& rt, const Value& v);

Value arithmetic(Runtime& rt, ArithmeticOp op, const Value& a, const Value& b);
Value negate(Runtime& rt, const Value& v);
Value positive(Runtime& rt, const Value& v);

/// Where `needle` begins in `text` at or behind byte `from`, npos where it does not. Linear in the worst case.
size_t find_text(std::string_view text, std::string_view needle, size_t from = 0);
/// The same for the last occurrence.
size_t find_last_text(std::string_view text, std::string_view needle);

}  // namespace ellm::format::jinja
