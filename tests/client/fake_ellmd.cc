// fake_ellmd SOCKET: a daemon without a model, for the tests of `ellm`. It answers a prompt with a description of the
// request, so that a test sees what arrived; some prompts ("slow", "die", "error 5" …) make it misbehave. Ends when
// stdin does.
#include <sys/prctl.h>

#include <atomic>
#include <chrono>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <map>
#include <memory>

#include "tests/client/fake_server.h"

namespace ellm::client {
namespace {

std::string join(const std::vector<uint32_t>& ids) {
  std::string text;
  for (uint32_t id : ids) text += (text.empty() ? "" : " ") + std::to_string(id);
  return text;
}

std::string describe(const Sampling& s) {
  char text[300];
  snprintf(text, sizeof text,
           "temperature=%g top_k=%u top_p=%g min_p=%g repetition=%g presence=%g frequency=%g seed=%llu max=%u",
           s.temperature, s.top_k, s.top_p, s.min_p, s.repetition_penalty, s.presence_penalty, s.frequency_penalty,
           static_cast<unsigned long long>(s.seed), s.max_tokens);
  std::string out = text;
  for (const std::string& stop : s.stop) out += " stop=<" + stop + ">";
  for (auto [id, value] : s.logit_bias)
    out += " bias=" + std::to_string(id) + ":" + std::to_string(static_cast<int>(value));
  if (s.want_logprobs) out += " logprobs=" + std::to_string(s.logprobs);
  if (s.ignore_eos) out += " ignore_eos";
  return out;
}

/// What is not as usual.
template <class M>
std::string urgency(const M& m) {
  std::string text;
  if (m.priority == Priority::batch) text += " batch";
  if (m.deadline_ms != 0) text += " deadline=" + std::to_string(m.deadline_ms);
  if (m.n != 1) text += " n=" + std::to_string(m.n);
  return text;
}

std::string describe(const Generate& m) {
  return "generate model=" + m.model + (m.use_tokens ? " tokens=" + join(m.tokens) : " prompt=<" + m.prompt + ">") +
         " " + describe(m.sampling) + urgency(m);
}
std::string describe(const Chat& m) {
  std::string text = "chat model=" + m.model;
  for (const ChatMessage& message : m.messages)
    text += " " + message.role + "=<" + message.content + ">" +
            (message.token_ids.empty() ? "" : "[" + join(message.token_ids) + "]");
  if (!m.variables.empty()) text += " variables=" + m.variables;
  return text + " " + describe(m.sampling) + urgency(m);
}
const std::string& prompt_of(const Generate& m) { return m.prompt; }
std::string prompt_of(const Chat& m) { return m.messages.empty() ? "" : m.messages.back().content; }

class Session {
 public:
  explicit Session(Peer& peer) : peer_(peer) {}
  ~Session() {
    for (auto& [id, stop] : slow_) *stop = true;
    for (std::thread& thread : threads_) thread.join();
  }

  /// False to drop the connection.
  bool answer(const Message& message) {
    return std::visit([&](const auto& m) { return on(m); }, message);
  }

 private:
  bool on(const Generate& m) { return complete(m); }
  bool on(const Chat& m) { return complete(m); }
  bool on(const Tokenize& m) {
    TokenizeReply reply{m.id, {}, {}};
    if (m.add_special) reply.tokens.push_back(1), reply.pieces.push_back("<s>");
    for (char c : m.text) reply.tokens.push_back(static_cast<unsigned char>(c)), reply.pieces.emplace_back(1, c);
    return send(reply);
  }
  bool on(const Detokenize& m) {
    std::string text;
    for (uint32_t id : m.tokens) text += id == 1 ? (m.special ? "<s>" : "") : std::string(1, static_cast<char>(id));
    return send(TextReply{m.id, text});
  }
  bool on(const RenderTemplate& m) { return send(TextReply{m.id, "rendered " + m.variables}); }
  bool on(const Score& m) {
    size_t n = m.use_tokens ? m.tokens.size() : m.text.size();
    ScoreReply reply;
    reply.id = m.id, reply.last = true, reply.usage.prompt_tokens = static_cast<uint32_t>(n);
    for (size_t i = 0; i < n; i++)
      reply.tokens.push_back(m.use_tokens ? m.tokens[i] : static_cast<unsigned char>(m.text[i]));
    for (size_t i = 1; i < n; i++) reply.log_probs.push_back(-0.5f);
    if (m.top > 0)
      for (size_t i = 0; i < n; i++) reply.top.push_back({{7, -0.1f}, {8, -2.5f}});
    return send(reply);
  }
  bool on(const Cancel& m) {
    auto slow = slow_.find(m.target);
    if (slow == slow_.end()) return send(Error{m.id, ErrorCode::no_such_request, "no such request", 0});
    *slow->second = true;
    return send(Ok{m.id});
  }
  bool on(const Status& m) {
    StatusReply reply;
    reply.id = m.id, reply.version = "9.9", reply.kernels = "avx2", reply.cpu = "a CPU", reply.threads = 4,
    reply.pid = 77, reply.uptime_s = 5000;
    reply.models = {model("tiny", true)};
    reply.requests.resize(1);
    reply.requests[0].model = "tiny", reply.requests[0].kind = "chat", reply.requests[0].state = "decode",
    reply.requests[0].uid = 1000, reply.requests[0].priority = Priority::batch, reply.requests[0].preemptions = 3,
    reply.requests[0].deadline_left_ms = 7000;
    reply.running = 1, reply.served = 12;
    reply.warnings = {"memory could not be locked"};
    return send(reply);
  }
  bool on(const Models& m) {
    if (m.action != ModelsAction::list && m.name != "tiny")
      return send(Error{m.id, ErrorCode::no_such_model, "there is no model '" + m.name + "'", 0});
    return send(ModelsReply{m.id, {model("tiny", true), model("large", false)}, {}});
  }
  template <class M>
  bool on(const M& m) {
    if constexpr (requires { m.id; }) return send(Error{m.id, ErrorCode::bad_request, "not a request", 0});
    return false;
  }

  static ModelInfo model(const std::string& name, bool loaded) {
    ModelInfo info;
    info.name = name, info.path = "/models/" + name + ".gguf", info.architecture = "llama", info.size_label = "1.5B",
    info.weight_types = "Q8_0 100 %";
    info.file_bytes = 1500 << 20, info.context = 4096, info.loaded = loaded, info.kv_type = "f16", info.kv_pages = 10,
    info.kv_pages_free = 4, info.kv_pages_cached = 2;
    return info;
  }

  template <class M>
  bool send(const M& message) {
    peer_.send(message);
    return true;
  }

  void finish(uint32_t id, FinishReason reason, uint32_t tokens, uint32_t sample = 0, uint32_t remaining = 0) {
    Done done;
    done.sample = sample, done.remaining = remaining;
    done.id = id, done.finish_reason = reason, done.model = "tiny", done.seed = 5,
    done.usage = {3, 1, tokens, 0, 0, {1, 1, 0, 0, 0, 0, 0, 0}};
    done.timings.ttft_ms = 12.5, done.timings.decode_tokens_per_second = 40;
    peer_.send(done);
  }

  template <class M>
  bool complete(const M& m) {
    std::string prompt = prompt_of(m);
    if (prompt == "die") return send(Token{m.id, "half an ", {1}, {}}), false;
    if (prompt.starts_with("error ")) {
      auto code = static_cast<ErrorCode>(atoi(prompt.c_str() + 6));
      return send(Error{m.id, code, "said by the daemon", code == ErrorCode::busy ? 1500u : 0});
    }
    if (prompt == "slow") {
      auto stop = slow_[m.id] = std::make_shared<std::atomic<bool>>(false);
      threads_.emplace_back([this, id = m.id, stop] {
        uint32_t n = 0;
        for (; n < 1000 && !*stop; n++) {
          peer_.send(Token{id, "tick ", {n}, {}});
          std::this_thread::sleep_for(std::chrono::milliseconds(10));
        }
        finish(id, *stop ? FinishReason::cancelled : FinishReason::stop, n);
      });
      return true;
    }
    std::string text = prompt == "escape"  ? "a\033[31mb\xC2\x9B"
                                             "c\td"
                       : prompt == "bytes" ? "\xFF\xFE"
                       : prompt == "much"  ? std::string(1 << 20, 'x')
                                           : describe(m);
    if (prompt == "late") {
      peer_.send(Token{m.id, "half an ", {11}, {}});
      finish(m.id, FinishReason::deadline, 1);
      return true;
    }
    for (uint32_t sample = m.n; sample-- > 1;) {  // the last one first
      peer_.send(Token{m.id, "sample " + std::to_string(sample), {sample}, {}, sample});
      finish(m.id, FinishReason::length, 1, sample, sample);
    }
    size_t half = text.size() / 2;
    std::vector<TokenLogprob> first, second;
    if (m.sampling.want_logprobs) first = {{11, -0.1f, {{11, -0.1f}, {4, -3}}}}, second = {{12, -0.25f, {}}};
    peer_.send(Token{m.id, text.substr(0, half), {11}, first});
    peer_.send(Token{m.id, text.substr(half), {12}, second});
    finish(m.id, FinishReason::stop, 2);
    return true;
  }

  Peer& peer_;
  std::map<uint32_t, std::shared_ptr<std::atomic<bool>>> slow_;
  std::vector<std::thread> threads_;
};

}  // namespace
}  // namespace ellm::client

int main(int argc, char** argv) {
  if (argc != 2) return 64;
  prctl(PR_SET_PDEATHSIG, SIGTERM);
  ellm::client::FakeServer server(argv[1], [](ellm::client::Peer& peer) {
    peer.say_hello({ellm::client::kFeatureManage, ellm::client::kFeatureSamples, ellm::client::kFeatureDeadline});
    ellm::client::Session session(peer);
    while (auto message = peer.receive())
      if (!session.answer(*message)) return;
  });
  puts("ready");
  fflush(stdout);
  while (getchar() != EOF) continue;
}
