// From a chat to the ids of its prompt: the template's variables, its rendering, and the ids that the model itself
// wrote earlier put back in their place. Pure; the preparation pool.
#pragma once
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "client/messages.h"
#include "daemon/model/model.h"

namespace ellm::daemon {

/// What is wrong with the chat's own JSON, or with the model: the code says which.
class PromptError : public std::runtime_error {
 public:
  PromptError(client::ErrorCode code, const std::string& what) : std::runtime_error(what), code_(code) {}
  client::ErrorCode code() const { return code_; }

 private:
  client::ErrorCode code_;
};

/// Throws PromptError where there is a fault (validate.h).
void refuse_fault(const std::optional<std::string>& fault);

/// A prompt's ids. Where a message's own ids could not be used, its text, which ends in front of token
/// `retokenised_until`, may be in the cache under those ids.
struct Prompt {
  std::vector<uint32_t> tokens;
  uint32_t retokenised_until = 0;
};

/// Throws PromptError (also for what the template raises).
Prompt chat_prompt(const std::string& model_name, const model::Model& model, const client::Chat& chat);

/// Renders the template over variables in JSON; bos_token and eos_token are added where they are missing.
std::string render_template(const std::string& model_name, const model::Model& model, const std::string& variables);

/// Ids of a plain prompt or text.
std::vector<uint32_t> text_prompt(const model::Model& model, const std::string& text);

/// What stands for text i in a rendering: begin, i in decimals, end.
struct Mark {
  std::string begin, end;
};

/// The texts `texts[i]` as they stand in `rendered`, which is `marked` with each mark replaced by something: where a
/// mark stands in `marked`, once and in order, and exactly texts[i] in `rendered` between the same surroundings, its
/// offset. Linear in the lengths: `searched` grows by the bytes that were looked through for marks and surroundings.
std::vector<std::optional<size_t>> locate(const std::string& rendered, const std::string& marked, const Mark& mark,
                                          std::span<const std::string> texts, size_t* searched = nullptr);

}  // namespace ellm::daemon
