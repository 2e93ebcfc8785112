// What is wrong with a request, in words that name the field, its value and what is allowed. Pure; any thread.
#pragma once
#include <optional>
#include <string>

#include "client/messages.h"

namespace ellm::daemon {

/// Empty optional: nothing. `vocabulary` 0: not known yet, ids of logit_bias are not checked.
std::optional<std::string> fault_of(const client::Sampling& sampling, uint32_t vocabulary);

/// Lists of more entries than are allowed, or longer ones: cheap, before anything is copied.
std::optional<std::string> size_fault(const client::Sampling& sampling);

/// "FIELD: invalid UTF-8 at byte 17"
std::optional<std::string> utf8_fault(const std::string& field, const std::string& text);

/// All texts of a request.
std::optional<std::string> text_fault(const client::Generate& request);
std::optional<std::string> text_fault(const client::Chat& request);
std::optional<std::string> text_fault(const client::Score& request);
std::optional<std::string> text_fault(const client::Tokenize& request);
std::optional<std::string> text_fault(const client::Detokenize& request);
std::optional<std::string> text_fault(const client::RenderTemplate& request);

inline constexpr uint32_t kMostLogprobs = 128;  // alternatives per token, of completions and scores

}  // namespace ellm::daemon
