// Methods of list, tuple, dict, loop and cycler.
#include <algorithm>

#include "daemon/format/jinja/access.h"
#include "daemon/format/jinja/builtins.h"
#include "daemon/format/jinja/interpreter.h"
#include "daemon/format/jinja/operators.h"
#include "daemon/format/jinja/print.h"
#include "daemon/format/jinja/sorting.h"

namespace ellm::format::jinja {

namespace {

Seq& seq_of(const Value& v) { return *as_seq(v); }
Dict& dict_of(const Value& v) { return *as_dict(v); }

void append(Runtime& rt, Seq& seq, const Value& v) {
  rt.keep_bytes(2 * sizeof(Value));
  seq.items.push_back(v);
}

/// An index of list.insert and list.pop: negative from the end.
int64_t index_in(Runtime& rt, const Seq& seq, std::string_view what, const Value& v) {
  const int64_t index = integer_argument(rt, what, v);
  const auto size = static_cast<int64_t>(seq.items.size());
  return index < 0 ? (index < -size ? -1 : index + size) : index;
}

Value pop_item(Runtime& rt, const Value& self, Arguments& args) {
  Seq& seq = seq_of(self);
  if (seq.items.empty()) rt.fail("pop from empty list");
  const int64_t at = args.has(0) ? index_in(rt, seq, "pop", args[0]) : static_cast<int64_t>(seq.items.size()) - 1;
  if (at < 0 || at >= static_cast<int64_t>(seq.items.size())) rt.fail("pop index out of range");
  rt.spend((seq.items.size() - static_cast<size_t>(at)) / 8);
  Value taken = std::move(seq.items[static_cast<size_t>(at)]);
  seq.items.erase(seq.items.begin() + at);
  return taken;
}

Value insert_item(Runtime& rt, const Value& self, Arguments& args) {
  Seq& seq = seq_of(self);
  const int64_t size = static_cast<int64_t>(seq.items.size());
  const int64_t at = std::clamp<int64_t>(index_in(rt, seq, "insert", args[0]), 0, size);
  rt.spend(static_cast<size_t>(size - at) / 8);
  rt.keep_bytes(2 * sizeof(Value));
  seq.items.insert(seq.items.begin() + at, args[1]);
  return Value::none();
}

std::optional<size_t> position(Runtime& rt, const Value& self, const Value& wanted) {
  const Seq& seq = seq_of(self);
  for (size_t i = 0; i < seq.items.size(); ++i) {
    if (equal(rt, seq.items[i], wanted)) return i;
  }
  return std::nullopt;
}

Value index_of(Runtime& rt, const Value& self, Arguments& args) {
  const auto at = position(rt, self, args[0]);
  if (!at) rt.fail(repr_of(rt, args[0]) + " is not in list");
  return Value::integer(static_cast<int64_t>(*at));
}

Value count_of(Runtime& rt, const Value& self, Arguments& args) {
  int64_t count = 0;
  for (const Value& item : seq_of(self).items) count += equal(rt, item, args[0]);
  return Value::integer(count);
}

Value remove_item(Runtime& rt, const Value& self, Arguments& args) {
  const auto at = position(rt, self, args[0]);
  if (!at) rt.fail("list.remove(x): x not in list");
  Seq& seq = seq_of(self);
  seq.items.erase(seq.items.begin() + static_cast<ptrdiff_t>(*at));
  return Value::none();
}

Value extend(Runtime& rt, const Value& self, Arguments& args) {
  for (const Value& item : to_vector(rt, args[0])) append(rt, seq_of(self), item);
  return Value::none();
}

Value sort_in_place(Runtime& rt, const Value& self, Arguments& args) {
  std::vector<Keyed> items;
  for (const Value& item : seq_of(self).items) items.push_back({item, item});
  seq_of(self).items = sorted(rt, std::move(items), args.has(0) && truth(args[0]));
  return Value::none();
}

constexpr Builtin kList[] = {
    {"append", "object",
     [](Runtime& rt, const Value& self, Arguments& args) {
       append(rt, seq_of(self), args[0]);
       return Value::none();
     }},
    {"extend", "iterable", extend},
    {"insert", "index object", insert_item},
    {"pop", "index?", pop_item},
    {"remove", "value", remove_item},
    {"clear", "",
     [](Runtime&, const Value& self, Arguments&) {
       seq_of(self).items.clear();
       return Value::none();
     }},
    {"reverse", "",
     [](Runtime& rt, const Value& self, Arguments&) {
       auto& items = seq_of(self).items;
       rt.spend(items.size() / 4);
       std::reverse(items.begin(), items.end());
       return Value::none();
     }},
    {"sort", "reverse?", sort_in_place},
    {"copy", "", [](Runtime& rt, const Value& self, Arguments&) { return rt.list(seq_of(self).items); }},
    {"count", "value", count_of},
    {"index", "value", index_of},
};

constexpr Builtin kTuple[] = {{"count", "value", count_of}, {"index", "value", index_of}};

Value get(Runtime& rt, const Value& self, Arguments& args) {
  const Value* found = dict_of(self).find(rt, args[0]);
  if (found != nullptr) return *found;
  return args.has(1) ? args[1] : Value::none();
}

Value items(Runtime& rt, const Value& self, Arguments&) {
  std::vector<Value> pairs;
  pairs.reserve(dict_of(self).entries().size());
  for (const auto& [key, value] : dict_of(self).entries()) pairs.push_back(rt.tuple({key, value}));
  return rt.seq(Shape::dict_items, std::move(pairs));
}

Value keys(Runtime& rt, const Value& self, Arguments&) {
  std::vector<Value> names;
  for (const auto& entry : dict_of(self).entries()) names.push_back(entry.first);
  return rt.seq(Shape::dict_keys, std::move(names));
}

Value values(Runtime& rt, const Value& self, Arguments&) {
  std::vector<Value> all;
  for (const auto& entry : dict_of(self).entries()) all.push_back(entry.second);
  return rt.seq(Shape::dict_values, std::move(all));
}

Value pop_key(Runtime& rt, const Value& self, Arguments& args) {
  if (auto taken = dict_of(self).take(rt, args[0])) return *taken;
  if (!args.has(1)) rt.fail("pop: no key " + repr_of(rt, args[0]));
  return args[1];
}

Value update(Runtime& rt, const Value& self, Arguments& args) {
  if (args.positional.size() > 1) rt.fail("update expected at most 1 argument");
  Dict& dict = dict_of(self);
  if (!args.positional.empty()) {
    if (const Dict* from = as_dict(args[0])) {
      const auto entries = from->entries();  // a copy: it may be the dict itself
      for (const auto& [key, value] : entries) dict.set(rt, key, value);
    } else {
      for (const Value& item : to_vector(rt, args[0])) {
        const std::vector<Value> pair = to_vector(rt, item);
        if (pair.size() != 2) rt.fail("a dict is updated with pairs");
        dict.set(rt, pair[0], pair[1]);
      }
    }
  }
  for (const auto& [key, value] : args.named) dict.set(rt, key, value);
  return Value::none();
}

Value set_default(Runtime& rt, const Value& self, Arguments& args) {
  if (const Value* found = dict_of(self).find(rt, args[0])) return *found;
  const Value value = args.has(1) ? args[1] : Value::none();
  dict_of(self).set(rt, args[0], value);
  return value;
}

constexpr Builtin kDict[] = {
    {"get", "key default?", get},
    {"items", "", items},
    {"keys", "", keys},
    {"values", "", values},
    {"pop", "key default?", pop_key},
    {"update", "*", update},
    {"setdefault", "key default?", set_default},
    {"copy", "",
     [](Runtime& rt, const Value& self, Arguments&) {
       Dict* copy = rt.dict();
       for (const auto& [key, value] : dict_of(self).entries()) copy->set(rt, key, value);
       return Value::object(copy);
     }},
    {"clear", "",
     [](Runtime&, const Value& self, Arguments&) {
       dict_of(self).clear();
       return Value::none();
     }},
};

constexpr Builtin kLoop[] = {
    {"cycle", "*",
     [](Runtime& rt, const Value& self, Arguments& args) {
       if (args.positional.empty()) rt.fail("no items for cycling given");
       const auto at = static_cast<size_t>(std::max<int64_t>(static_cast<Loop*>(self.object())->index0(), 0));
       return args[at % args.positional.size()];
     }},
    {"changed", "*",
     [](Runtime& rt, const Value& self, Arguments& args) {
       return Value::boolean(static_cast<Loop*>(self.object())->changed(rt, args.positional));
     }},
};

constexpr Builtin kCycler[] = {
    {"next", "",
     [](Runtime&, const Value& self, Arguments&) {
       auto& cycler = *static_cast<Cycler*>(self.object());
       const size_t at = cycler.at;
       cycler.at = (at + 1) % cycler.items.size();
       return cycler.items[at];
     }},
    {"reset", "",
     [](Runtime&, const Value& self, Arguments&) {
       static_cast<Cycler*>(self.object())->at = 0;
       return Value::none();
     }},
};

}  // namespace

BuiltinTable list_methods() { return kList; }
BuiltinTable tuple_methods() { return kTuple; }
BuiltinTable dict_methods() { return kDict; }
BuiltinTable loop_methods() { return kLoop; }
BuiltinTable cycler_methods() { return kCycler; }

}  // namespace ellm::format::jinja
