// Template source to syntax tree. Recursion is bounded by TemplateLimits::depth.
#pragma once
#include <memory>
#include <string_view>

#include "daemon/format/chat_template.h"
#include "daemon/format/jinja/ast.h"

namespace ellm::format::jinja {

/// Throws TemplateError with the line of what is wrong.
std::unique_ptr<const Template> parse_template(std::string_view source, const TemplateLimits& limits);

}  // namespace ellm::format::jinja
