// What a completion cost, in words.
#include "client/cli/statistics.h"

#include "client/cli/json.h"
#include "client/cli/output.h"

namespace ellm::cli {

std::string describe_statistics(const client::Completion& completion) {
  const client::Usage& usage = completion.usage;
  const client::Timings& timings = completion.timings;
  std::string text = format("%s: %u prompt tokens", completion.model.c_str(), usage.prompt_tokens);
  if (usage.cached_tokens > 0) {
    text += format(" (%u cached", usage.cached_tokens);
    text += usage.disk_tokens > 0 ? format(", %u of them on disk)", usage.disk_tokens) : ")";
  }
  if (usage.recomputed.evicted > 0) text += format(" (%u no longer)", usage.recomputed.evicted);
  if (timings.prefill_tokens_per_second > 0) text += format(" at %.0f/s", timings.prefill_tokens_per_second);
  text += format(", first token after %.0f ms, %u tokens", timings.ttft_ms, usage.completion_tokens);
  if (timings.decode_tokens_per_second > 0) text += format(" at %.1f/s", timings.decode_tokens_per_second);
  if (usage.drafted_tokens > 0)
    text += format(", %u of %u drafts accepted", usage.accepted_tokens, usage.drafted_tokens);
  return text + ", " + client::name_of(completion.finish_reason);
}

boost::json::object piece_json(const client::Token& token) {
  return {{"sample", token.sample}, {"text", to_json(token.text)}, {"tokens", to_json(token.tokens)}};
}

boost::json::object completion_json(const client::Completion& completion, bool logprobs) {
  boost::json::object object{
      {"text", to_json(completion.text)},     {"sample", completion.sample},
      {"model", to_json(completion.model)},   {"seed", completion.seed},
      {"tokens", to_json(completion.tokens)}, {"finish_reason", client::name_of(completion.finish_reason)},
      {"usage", to_json(completion.usage)},   {"timings", to_json(completion.timings)}};
  if (logprobs) object.emplace("logprobs", to_json(completion.logprobs));
  return object;
}

}  // namespace ellm::cli
