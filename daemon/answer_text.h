// One sample's tokens as text that may be shown: whole characters, without what a stop string begins. I/O thread, once
// the preparation pool has begun it.
#pragma once
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "daemon/format/tokenizer.h"
#include "daemon/stop_strings.h"

namespace ellm::daemon {

class AnswerText {
 public:
  explicit AnswerText(const std::vector<std::string>& stops) : finds_(!stops.empty()), stops_(stops) {}

  /// `at_start`: the first token stands at the beginning of a text.
  void begin(std::shared_ptr<const format::Tokenizer> tokenizer, bool at_start) {
    decoder_.emplace(std::move(tokenizer), at_start);
  }
  /// Adds what may be shown of a token. False: a stop string is complete.
  bool push(uint32_t token, std::string& out) { return add(decoder_->push(token), out); }
  /// What was held back, at the end.
  std::string finish() {
    std::string rest;
    if (add(decoder_->finish(), rest)) rest += stops_.finish();
    return rest;
  }
  bool stopped() const { return stopped_; }

 private:
  bool add(const std::string& text, std::string& out) {
    if (!finds_) {
      out += text;
      return true;
    }
    const auto piece = stops_.push(text);
    out += piece.text;
    stopped_ = piece.stopped;
    return !stopped_;
  }

  bool finds_, stopped_ = false;
  StopFinder stops_;
  std::optional<format::StreamDecoder> decoder_;
};

}  // namespace ellm::daemon
