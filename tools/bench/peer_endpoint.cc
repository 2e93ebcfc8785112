// A server with OpenAI's API (/completions, streamed, with usage) under the same work. Prompts are words in random
// order, each request's with other words first, so that no cache of prefixes serves them; how many words make the
// wanted tokens is found by two short requests. Times are what a client sees, scaled to the exact number of tokens by
// the usage that the server reports:
//   prefill      from the request to the answer's end, of one token; a depth is sent once before, for the server's
//   prefix cache decode       from when the last of the requests has its first token until the last has ended end to
//   end   from the requests until the last has ended
#include <algorithm>
#include <boost/json.hpp>
#include <chrono>
#include <cmath>
#include <exception>
#include <stdexcept>
#include <thread>

#include "tools/bench/http.h"
#include "tools/bench/peer.h"
#include "tools/bench/random_weights.h"

namespace ellm::bench {
namespace {

using Clock = std::chrono::steady_clock;
namespace json = boost::json;

double since(Clock::time_point begin, Clock::time_point end) {
  return std::chrono::duration<double>(end - begin).count();
}

constexpr const char* kWords[] = {
    "time",   "year",    "people", "way",     "day",      "man",     "thing",   "woman", "life",  "child", "world",
    "school", "state",   "family", "student", "group",    "country", "problem", "hand",  "part",  "place", "case",
    "week",   "company", "system", "program", "question", "work",    "number",  "night", "point", "home",  "water",
    "room",   "mother",  "area",   "money",   "story",    "fact",    "month",   "lot",   "right", "study", "book"};

/// What a streamed answer said.
struct Streamed {
  std::vector<Clock::time_point> pieces;  // when text arrived
  Clock::time_point end;
  uint64_t prompt_tokens = 0, completion_tokens = 0;
};

/// Lines "data: {…}" as they arrive in pieces.
class EventReader {
 public:
  explicit EventReader(Streamed& to) : to_(to) {}
  void push(std::string_view data) {
    buffer_ += data;
    for (size_t end; (end = buffer_.find('\n')) != buffer_.npos; buffer_.erase(0, end + 1))
      line(std::string_view(buffer_).substr(0, end));
  }

 private:
  void line(std::string_view text) {
    if (!text.starts_with("data:")) return;
    text.remove_prefix(text.starts_with("data: ") ? 6 : 5);
    json::error_code error;
    const json::value event = json::parse(text, error);
    if (error || !event.is_object()) return;  // [DONE]
    const auto* choices = event.as_object().if_contains("choices");
    if (choices != nullptr && choices->is_array() && !choices->as_array().empty()) to_.pieces.push_back(Clock::now());
    if (const auto* usage = event.as_object().if_contains("usage"); usage != nullptr && usage->is_object()) {
      to_.prompt_tokens = usage->at("prompt_tokens").to_number<uint64_t>();
      to_.completion_tokens = usage->at("completion_tokens").to_number<uint64_t>();
    }
  }
  Streamed& to_;
  std::string buffer_;
};

class EndpointPeer : public Peer {
 public:
  EndpointPeer(std::string url, std::string model, std::string key)
      : url_(std::move(url)), model_(std::move(model)), key_(std::move(key)) {
    while (url_.ends_with('/')) url_.pop_back();
    if (model_.empty()) model_ = first_model();
    calibrate();
  }

  std::string name() const override { return "server"; }
  std::string conditions() const override {
    return url_ + " as its model " + model_ +
           ": the same numbers of tokens and requests, seen from a client; its hardware, weights and "
           "KV types are what it has been given";
  }
  std::vector<std::string> variants(const Work&) const override { return {""}; }

  std::vector<std::optional<double>> run(const PeerTask&, std::span<const Work> works, const std::string&) override {
    std::vector<std::optional<double>> out;
    for (const Work& w : works) out.push_back(measure(w));
    return out;
  }

 private:
  std::string first_model() const {
    const HttpAnswer answer = http({url_ + "/models", key_, ""});
    json::error_code error;
    const json::value body = json::parse(answer.body, error);
    if (answer.status != 200 || error)
      throw std::runtime_error(url_ + "/models: status " + std::to_string(answer.status) + ", no list of models");
    return std::string(body.at("data").as_array().at(0).at("id").as_string());
  }

  /// Random but for the first word, which is the next one each time: short texts differ, too, and no cache helps.
  std::string words(uint64_t count) {
    std::string text = kWords[first_word_++ % std::size(kWords)];
    for (uint64_t i = 1; i < count; ++i) text += " " + std::string(kWords[random_.next() % std::size(kWords)]);
    return text;
  }
  std::string prompt(uint32_t tokens) {
    return words(static_cast<uint64_t>(std::max(1.0, std::round((tokens - fixed_tokens_) / tokens_per_word_))));
  }

  Streamed request(const std::string& text, uint32_t most) const {
    json::object body{{"model", model_},  {"prompt", text}, {"max_tokens", most},
                      {"temperature", 0}, {"stream", true}, {"stream_options", json::object{{"include_usage", true}}}};
    if (ignores_eos_) body["ignore_eos"] = true;
    Streamed result;
    EventReader reader(result);
    const HttpAnswer answer =
        http({url_ + "/completions", key_, json::serialize(body)}, [&](std::string_view data) { reader.push(data); });
    result.end = Clock::now();
    if (answer.status != 200)
      throw std::runtime_error(url_ + "/completions: status " + std::to_string(answer.status) + ": " +
                               answer.body.substr(0, 200));
    if (result.pieces.empty() || result.prompt_tokens == 0)
      throw std::runtime_error(
          url_ + "/completions: the answer is no stream of events with usage: " + answer.body.substr(0, 200));
    return result;
  }

  /// Tokens a word, and those that every prompt has; and whether the server knows ignore_eos.
  void calibrate() {
    double few = 0;
    try {
      few = static_cast<double>(request(words(64), 1).prompt_tokens);
    } catch (const std::runtime_error&) {  // OpenAI itself refuses arguments that it does not know
      ignores_eos_ = false;
      few = static_cast<double>(request(words(64), 1).prompt_tokens);
    }
    const auto many = static_cast<double>(request(words(192), 1).prompt_tokens);
    tokens_per_word_ = std::max(0.1, (many - few) / 128);
    fixed_tokens_ = few - 64 * tokens_per_word_;
  }

  std::vector<Streamed> together(const std::vector<std::string>& prompts, uint32_t most) const {
    std::vector<Streamed> results(prompts.size());
    std::vector<std::exception_ptr> failures(prompts.size());
    std::vector<std::thread> threads;
    for (size_t i = 0; i < prompts.size(); ++i)
      threads.emplace_back([&, i] {
        try {
          results[i] = request(prompts[i], most);
        } catch (...) {
          failures[i] = std::current_exception();
        }
      });
    for (std::thread& t : threads) t.join();
    for (const auto& f : failures)
      if (f) std::rethrow_exception(f);
    return results;
  }

  double measure(const Work& w) {
    std::vector<std::string> prompts;
    double before = 0;  // tokens that the server has had already
    const std::string common = w.shared ? prompt(w.depth) : "";
    const auto depth_text = [&] { return w.shared ? common : prompt(std::max(w.depth, 1u)); };
    for (uint32_t i = 0; i < w.batch; ++i) {
      const bool extends = w.kind != Kind::decode && w.depth > 0;
      std::string text = w.kind == Kind::decode || extends ? depth_text() : "";
      if (extends) before += static_cast<double>(request(text, 1).prompt_tokens);
      if (w.prompt > 0) text += (text.empty() ? "" : " ") + prompt(w.prompt);
      prompts.push_back(std::move(text));
    }
    const uint32_t most = w.kind == Kind::prefill ? 1 : w.kind == Kind::decode ? w.generate + 1 : w.generate;
    const auto begin = Clock::now();
    const std::vector<Streamed> answers = together(prompts, most);
    if (w.kind == Kind::prefill) {
      double tokens = -before;
      for (const Streamed& s : answers) tokens += static_cast<double>(s.prompt_tokens);
      return since(begin, answers[0].end) / std::max(1.0, tokens) * static_cast<double>(w.tokens());
    }
    return w.kind == Kind::decode ? decode_seconds(w, answers) : whole_seconds(w, answers, begin);
  }

  /// What all of them got while all of them decoded.
  static double decode_seconds(const Work& w, const std::vector<Streamed>& answers) {
    Clock::time_point from{}, to{};
    for (const Streamed& s : answers) from = std::max(from, s.pieces.front()), to = std::max(to, s.pieces.back());
    double tokens = 0;
    for (const Streamed& s : answers) {
      const auto after = std::ranges::count_if(s.pieces, [&](Clock::time_point t) { return t > from; });
      tokens +=
          static_cast<double>(after) * static_cast<double>(s.completion_tokens) / static_cast<double>(s.pieces.size());
    }
    if (tokens < 1) throw std::runtime_error("the server ended its answers after one token");
    return since(from, to) / tokens * static_cast<double>(w.tokens());
  }
  static double whole_seconds(const Work& w, const std::vector<Streamed>& answers, Clock::time_point begin) {
    Clock::time_point to{};
    double tokens = 0;
    for (const Streamed& s : answers) to = std::max(to, s.end), tokens += static_cast<double>(s.completion_tokens);
    return since(begin, to) / std::max(1.0, tokens) * static_cast<double>(w.tokens());
  }

  std::string url_, model_, key_;
  Random random_{
      static_cast<uint64_t>(Clock::now().time_since_epoch().count())};  // other prompts than an earlier run's
  uint64_t first_word_ = random_.next();
  double tokens_per_word_ = 1, fixed_tokens_ = 0;
  bool ignores_eos_ = true;
};

}  // namespace

std::unique_ptr<Peer> make_endpoint_peer(const std::string& url, const std::string& model, const std::string& key) {
  return std::make_unique<EndpointPeer>(url, model, key);
}

}  // namespace ellm::bench
