// Chat templates: a sandboxed interpreter of the Jinja language as chat templates use it (transformers' settings:
// trim_blocks, lstrip_blocks, loop controls). No file, no attribute of the host is reachable; steps, output and depth
// are bounded. A parsed template is immutable; any thread may render it.
#pragma once
#include <boost/json/value.hpp>
#include <memory>
#include <stdexcept>
#include <string>
#include <string_view>

namespace ellm::format {

/// "chat template, line 12: message". `raised()` when the template called raise_exception.
class TemplateError : public std::runtime_error {
 public:
  TemplateError(const std::string& what, int line, bool raised)
      : std::runtime_error(what), line_(line), raised_(raised) {}
  int line() const { return line_; }
  bool raised() const { return raised_; }

 private:
  int line_;
  bool raised_;
};

struct TemplateLimits {
  size_t steps = 20'000'000;         // evaluated nodes
  size_t output_bytes = 64u << 20;   // also of any intermediate string
  int depth = 200;                   // nesting of expressions, blocks and macro calls; 200 take up to 1 MB of stack
  size_t memory_bytes = 256u << 20;  // held by the values of one render
};

class ChatTemplate {
 public:
  /// Throws TemplateError with the line of a syntax error.
  static std::shared_ptr<const ChatTemplate> parse(std::string_view source, const TemplateLimits& limits = {});

  /// `variables`: messages, tools, add_generation_prompt, bos_token, eos_token, and any other variable of the template;
  /// `now` (a date such as "2024-07-26") is what strftime_now sees, today where it is absent. Throws TemplateError.
  std::string render(const boost::json::object& variables) const;

 private:
  struct Impl;
  explicit ChatTemplate(std::shared_ptr<const Impl> impl);
  std::shared_ptr<const Impl> impl_;
};

}  // namespace ellm::format
