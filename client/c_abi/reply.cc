// ellm.h: what a reply holds.
#include "client/c_abi/handles.h"

using namespace ellm::client::c_abi;

namespace ellm::client::c_abi {

std::vector<ellm_token_logprob> convert(const std::vector<std::pair<uint32_t, float>>& top) {
  std::vector<ellm_token_logprob> out;
  out.reserve(top.size());
  for (auto [id, logprob] : top) out.push_back({id, logprob});
  return out;
}

ellm_reply reply_of(Completion completion) {
  ellm_reply reply;
  reply.text = std::move(completion.text);
  reply.tokens = std::move(completion.tokens);
  for (const TokenLogprob& token : completion.logprobs) {
    reply.log_probs.push_back(token.logprob);
    reply.top.push_back(convert(token.top));
  }
  for (Completion& other : completion.others) reply.others.push_back(reply_of(std::move(other)));
  completion.others.clear();
  reply.completion = std::move(completion);
  return reply;
}

}  // namespace ellm::client::c_abi

namespace {

void put(size_t* to, size_t value) {
  if (to) *to = value;
}

/// A list's elements, or nothing.
template <class T>
const T* list_of(const std::vector<T>* list, size_t* count) {
  put(count, list ? list->size() : 0);
  return list && !list->empty() ? list->data() : nullptr;
}

const char* text_at(const std::string* text, size_t* length) {
  put(length, text ? text->size() : 0);
  return text ? text->c_str() : nullptr;
}

template <class T>
const T* element(const std::vector<T>& list, size_t index) {
  return index < list.size() ? &list[index] : nullptr;
}

}  // namespace

const char* ellm_reply_text(const ellm_reply* reply, size_t* length) {
  return text_at(reply && reply->text ? &*reply->text : nullptr, length);
}

const uint32_t* ellm_reply_tokens(const ellm_reply* reply, size_t* count) {
  return list_of(reply ? &reply->tokens : nullptr, count);
}

const char* ellm_reply_piece(const ellm_reply* reply, size_t index, size_t* length) {
  return text_at(reply ? element(reply->pieces, index) : nullptr, length);
}

const float* ellm_reply_log_probs(const ellm_reply* reply, size_t* count) {
  return list_of(reply ? &reply->log_probs : nullptr, count);
}

const ellm_token_logprob* ellm_reply_top(const ellm_reply* reply, size_t position, size_t* count) {
  return list_of(reply ? element(reply->top, position) : nullptr, count);
}

const char* ellm_reply_warning(const ellm_reply* reply, size_t index) {
  return text_at(reply && reply->status ? element(reply->status->warnings, index) : nullptr, nullptr);
}

size_t ellm_reply_model_count(const ellm_reply* reply) { return reply ? reply->models.size() : 0; }

int ellm_reply_model(const ellm_reply* reply, size_t index, ellm_model_info* info) {
  return guarded([&] {
    require(reply && index < reply->models.size(), "the reply has no such model");
    const ellm::client::ModelInfo& m = reply->models[index];
    ellm_model_info out{};
    out.name = m.name.c_str(), out.path = m.path.c_str(), out.architecture = m.architecture.c_str();
    out.size_label = m.size_label.c_str(), out.weight_types = m.weight_types.c_str();
    out.tokenizer = m.tokenizer.c_str(), out.kv_type = m.kv_type.c_str();
    out.parameters = m.parameters, out.file_bytes = m.file_bytes, out.resident_bytes = m.resident_bytes;
    out.context = m.context, out.kv_pages = m.kv_pages, out.kv_pages_free = m.kv_pages_free;
    out.loaded = m.loaded, out.locked = m.locked, out.chat = m.chat;
    copy_out(out, info);
  });
}

int ellm_reply_completion(const ellm_reply* reply, ellm_completion_info* info) {
  return guarded([&] {
    require(reply && reply->completion, "the reply is no answer of a model");
    const ellm::client::Completion& c = *reply->completion;
    ellm_completion_info out{};
    out.model = c.model.c_str(), out.seed = c.seed, out.finish_reason = static_cast<int32_t>(c.finish_reason);
    out.prompt_tokens = c.usage.prompt_tokens, out.cached_tokens = c.usage.cached_tokens;
    out.completion_tokens = c.usage.completion_tokens;
    out.queue_ms = c.timings.queue_ms, out.ttft_ms = c.timings.ttft_ms, out.total_ms = c.timings.total_ms;
    out.prefill_tokens_per_second = c.timings.prefill_tokens_per_second;
    out.decode_tokens_per_second = c.timings.decode_tokens_per_second;
    copy_out(out, info);
  });
}

int ellm_reply_status(const ellm_reply* reply, ellm_status_info* info) {
  return guarded([&] {
    require(reply && reply->status, "the reply is no status");
    const ellm::client::StatusReply& s = *reply->status;
    ellm_status_info out{};
    out.version = s.version.c_str(), out.kernels = s.kernels.c_str(), out.cpu = s.cpu.c_str();
    out.uptime_s = s.uptime_s, out.threads = s.threads, out.pid = s.pid;
    out.running = s.running, out.queued = s.queued, out.connections = s.connections;
    out.warning_count = static_cast<uint32_t>(s.warnings.size());
    out.served = s.served, out.prompt_tokens = s.prompt_tokens, out.completion_tokens = s.completion_tokens;
    copy_out(out, info);
  });
}

size_t ellm_reply_sample_count(const ellm_reply* reply) {
  return reply && reply->completion ? 1 + reply->others.size() : 0;
}

const ellm_reply* ellm_reply_sample(const ellm_reply* reply, size_t index) {
  if (index >= ellm_reply_sample_count(reply)) return nullptr;
  return index == 0 ? reply : &reply->others[index - 1];
}

void ellm_reply_free(ellm_reply* reply) { delete reply; }
