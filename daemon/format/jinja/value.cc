// Type names, and the dict.
#include "daemon/format/jinja/value.h"

#include "daemon/format/jinja/operators.h"
#include "daemon/format/jinja/runtime.h"

namespace ellm::format::jinja {

namespace {

constexpr size_t kEntryBytes = 2 * sizeof(Value) + 64;  // with its share of the index

}  // namespace

void destroy_str(Str* str) noexcept {
  str->owner->release_bytes(str->text.capacity() + sizeof(Str));
  delete str;
}

const char* type_name(TypeCode code) {
  static constexpr const char* kNames[] = {
      "Undefined", "NoneType",  "bool",       "int",         "float",       "str",   "Markup", "list",
      "tuple",     "generator", "dict_items", "dict_keys",   "dict_values", "range", "dict",   "Namespace",
      "function",  "method",    "Macro",      "LoopContext", "Cycler",      "Joiner"};
  return kNames[static_cast<size_t>(code)];
}

TypeCode type_code(const Value& v) {
  switch (v.kind()) {
    case Kind::missing:
    case Kind::undefined: return TypeCode::undefined;
    case Kind::none: return TypeCode::none;
    case Kind::boolean: return TypeCode::boolean;
    case Kind::integer: return TypeCode::integer;
    case Kind::real: return TypeCode::real;
    case Kind::string: return v.str()->markup ? TypeCode::markup : TypeCode::string;
    case Kind::object: break;
  }
  // Shapes stand in the same order as the codes from list on.
  return static_cast<TypeCode>(static_cast<int>(TypeCode::list) + static_cast<int>(v.object()->shape));
}

std::optional<size_t> Dict::position(std::string_view key) const {
  if (entries_.size() > kScan) {
    const auto at = index_.find(key);
    return at != index_.end() ? std::optional(at->second) : std::nullopt;
  }
  for (size_t i = 0; i < entries_.size(); ++i) {
    if (entries_[i].first.is_string() && entries_[i].first.text() == key) return i;
  }
  return std::nullopt;
}

std::optional<size_t> Dict::position(Runtime& rt, const Value& key) const {
  if (key.is_string()) return position(key.text());
  require_hashable(rt, key);
  rt.spend(entries_.size() / 4);
  for (size_t i = 0; i < entries_.size(); ++i) {
    if (equal(rt, entries_[i].first, key)) return i;
  }
  return std::nullopt;
}

const Value* Dict::find(std::string_view key) const {
  const auto at = position(key);
  return at ? &entries_[*at].second : nullptr;
}

const Value* Dict::find(Runtime& rt, const Value& key) const {
  const auto at = position(rt, key);
  return at ? &entries_[*at].second : nullptr;
}

void Dict::set(Runtime& rt, const Value& key, Value value) {
  if (const auto at = position(rt, key)) {
    entries_[*at].second = std::move(value);
    return;
  }
  rt.keep_bytes(kEntryBytes);
  entries_.emplace_back(key, std::move(value));
  if (entries_.size() == kScan + 1) {
    rebuild_index();
  } else if (entries_.size() > kScan && key.is_string()) {
    index_.emplace(entries_.back().first.text(), entries_.size() - 1);
  }
}

std::optional<Value> Dict::take(Runtime& rt, const Value& key) {
  const auto at = position(rt, key);
  if (!at) return std::nullopt;
  rt.spend(entries_.size());
  Value taken = std::move(entries_[*at].second);
  index_.clear();  // before the key's text goes
  entries_.erase(entries_.begin() + static_cast<ptrdiff_t>(*at));
  rebuild_index();
  return taken;
}

void Dict::clear() {
  index_.clear();
  entries_.clear();
}

void Dict::rebuild_index() {
  index_.clear();
  if (entries_.size() <= kScan) return;
  for (size_t i = 0; i < entries_.size(); ++i) {
    if (entries_[i].first.is_string()) index_.emplace(entries_[i].first.text(), i);
  }
}

}  // namespace ellm::format::jinja
