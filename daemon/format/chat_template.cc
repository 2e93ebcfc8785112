// ChatTemplate: the parsed template and its limits; every render has an interpreter of its own.
#include "daemon/format/chat_template.h"

#include "daemon/format/jinja/interpreter.h"
#include "daemon/format/jinja/parser.h"

namespace ellm::format {

struct ChatTemplate::Impl {
  std::unique_ptr<const jinja::Template> source;
  TemplateLimits limits;
};

ChatTemplate::ChatTemplate(std::shared_ptr<const Impl> impl) : impl_(std::move(impl)) {}

std::shared_ptr<const ChatTemplate> ChatTemplate::parse(std::string_view source, const TemplateLimits& limits) {
  auto impl = std::make_shared<Impl>();
  impl->limits = limits;
  impl->source = jinja::parse_template(source, limits);
  return std::shared_ptr<const ChatTemplate>(new ChatTemplate(std::move(impl)));
}

std::string ChatTemplate::render(const boost::json::object& variables) const {
  return jinja::Interpreter(*impl_->source, impl_->limits).render(variables);
}

}  // namespace ellm::format
