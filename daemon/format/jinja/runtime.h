// One render: its limits, what it has used of them, the objects it made, and how to fail. Used by one thread.
#pragma once
#include <ctime>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "daemon/format/chat_template.h"
#include "daemon/format/jinja/value.h"

namespace ellm::format::jinja {

struct Arguments {
  std::vector<Value> positional;
  std::vector<std::pair<Value, Value>> named;  // the names are strings

  const Value& operator[](size_t i) const { return positional[i]; }
  /// After bind(): whether parameter `i` was given.
  bool has(size_t i) const { return i < positional.size() && !positional[i].is_missing(); }
};

class Runtime {
 public:
  explicit Runtime(const TemplateLimits& limits) : limits_(limits) {}
  Runtime(const Runtime&) = delete;
  Runtime& operator=(const Runtime&) = delete;
  virtual ~Runtime();

  [[noreturn]] void fail(const std::string& message) const;
  [[noreturn]] void raise(const std::string& message) const;  // raise_exception
  /// The error of using an undefined value.
  [[noreturn]] void fail_undefined(const Value& undefined) const;

  /// Work done: one step is an evaluated node, an item visited, or 64 bytes of text looked at.
  void spend(size_t steps) {
    if (steps > steps_left_) fail_steps();
    steps_left_ -= steps;
  }
  void spend_text(size_t bytes) { spend(bytes / 64); }
  /// Text that is decoded and looked up character by character, which takes some ten times as long.
  void spend_characters(size_t bytes) { spend(bytes / 8); }
  /// Fails where a text of `bytes` would be over the limit; to be asked before building it.
  void check_text(size_t bytes) const;
  /// a * b bytes, checked.
  void check_text(size_t count, size_t each) const;
  /// Memory that this render holds from now on (strings give theirs back, objects at the end).
  void keep_bytes(size_t bytes);
  /// Fails where keep_bytes(bytes) would.
  void check_memory(size_t bytes) const;
  void release_bytes(size_t bytes) noexcept { bytes_held_ -= bytes; }

  Value text(std::string text, bool markup = false);
  Value text(std::string_view text) { return this->text(std::string(text)); }
  Value text(const char* text) { return this->text(std::string(text)); }
  /// Text of the kind of `like`: Markup stays Markup.
  Value text_like(const Value& like, std::string_view text) {
    return this->text(std::string(text), like.str()->markup);
  }
  Value seq(Shape shape, std::vector<Value> items);
  Value list(std::vector<Value> items) { return seq(Shape::list, std::move(items)); }
  Value tuple(std::vector<Value> items) { return seq(Shape::tuple, std::move(items)); }
  Value undefined_hint(std::string message);
  Dict* dict(Shape shape = Shape::dict) { return make<Dict>(shape); }
  template <typename T, typename... A>
  T* make(A&&... arguments) {
    keep_bytes(sizeof(T) + sizeof(void*));
    auto owned = std::make_unique<T>(std::forward<A>(arguments)...);
    T* raw = owned.get();
    objects_.push_back(std::move(owned));
    return raw;
  }

  /// Orders the arguments by `parameters` ("old new count?": names, '?' behind those that may be missing; "*" leaves
  /// all as they are). Afterwards positional has one value for each, Kind::missing where not given.
  void bind(std::string_view function, std::string_view parameters, Arguments& arguments) const;
  Value call_builtin(const Builtin& builtin, const Value& self, Arguments& arguments);
  virtual Value call(const Value& callee, Arguments& arguments) = 0;

  const TemplateLimits& limits() const { return limits_; }
  int line() const { return line_; }
  void set_line(int line) { line_ = line; }
  /// What strftime_now sees.
  std::tm now() const { return now_; }

  /// One level of recursion, for as long as it lives.
  class Level {
   public:
    explicit Level(Runtime& rt) : rt_(rt) {
      if (++rt_.levels_ > rt_.max_levels_) rt_.fail_levels();
    }
    ~Level() { --rt_.levels_; }
    Level(const Level&) = delete;
    Level& operator=(const Level&) = delete;

   private:
    Runtime& rt_;
  };

 protected:
  std::tm now_{};

 private:
  [[noreturn]] void fail_steps() const;
  [[noreturn]] void fail_levels();

  static constexpr int kLevelsPerDepth = 8;  // a macro call or block takes some levels of the interpreter's recursion

  const TemplateLimits limits_;
  size_t steps_left_ = limits_.steps;
  size_t bytes_held_ = 0;
  int levels_ = 0;
  int max_levels_ = limits_.depth * kLevelsPerDepth;
  int line_ = 1;
  std::vector<std::unique_ptr<Object>> objects_;
};

[[noreturn]] void throw_template_error(const std::string& message, int line, bool raised = false);

}  // namespace ellm::format::jinja
