// The Tokenizer and the StreamDecoder: special tokens are cut out of the text, what lies between goes to the file's
// kind of BPE; see tokenizer.h.
#include "daemon/format/tokenizer.h"

#include <utility>
#include <variant>

#include "daemon/format/bpe.h"
#include "daemon/format/special_tokens.h"
#include "daemon/format/spm.h"
#include "daemon/format/utf8.h"
#include "daemon/format/vocabulary.h"

namespace ellm::format {

struct Tokenizer::Impl {
  Vocabulary vocabulary;
  SpecialTokens special{vocabulary, false};
  SpecialTokens user_defined{vocabulary, true};
  std::variant<Spm, Bpe> model;
  bool add_bos, add_eos;
  bool space_prefix;
  std::string description;

  // `pretokenizer` is null for SentencePiece.
  Impl(const Gguf& file, const PreTokenizerSpec* pretokenizer)
      : vocabulary(file, pretokenizer ? Vocabulary::Form::byte_level : Vocabulary::Form::spaces),
        model(pretokenizer ? decltype(model)(std::in_place_type<Bpe>, file, vocabulary, *pretokenizer)
                           : decltype(model)(std::in_place_type<Spm>, file, vocabulary)),
        add_bos(file.find_bool("tokenizer.ggml.add_bos_token").value_or(pretokenizer ? pretokenizer->add_bos : true)),
        add_eos(file.find_bool("tokenizer.ggml.add_eos_token").value_or(false)),
        space_prefix(!pretokenizer && file.find_bool("tokenizer.ggml.add_space_prefix").value_or(true)) {}

  void encode_plain(std::string_view text, bool at_border, std::vector<TokenId>& out) const {
    if (text.empty()) return;
    if (const Bpe* bpe = std::get_if<Bpe>(&model)) return bpe->encode(text, out);
    std::get<Spm>(model).encode(text, space_prefix && at_border, out);
  }

  // Appends what a token adds to a text. `at_start`: no text came before it (names of control tokens are none).
  void append_text(TokenId id, bool special, bool& at_start, std::string& out) const {
    if (id >= vocabulary.size()) return;
    std::string_view text = vocabulary.text(id);
    if (vocabulary.is_silent(id)) {
      if (special) out.append(text);
      return;
    }
    if (text.empty()) return;
    if (at_start && space_prefix && text.front() == ' ') text.remove_prefix(1);
    at_start = false;
    out.append(text);
  }
};

std::shared_ptr<const Tokenizer> Tokenizer::open(const Gguf& file) {
  const auto model = file.find_string("tokenizer.ggml.model");
  if (!model) throw file.error("key 'tokenizer.ggml.model' is missing");
  std::shared_ptr<Impl> impl;
  if (*model == "llama") {
    impl = std::make_shared<Impl>(file, nullptr);
    impl->description = "spm";
  } else if (*model == "gpt2") {
    const std::string_view name = file.find_string("tokenizer.ggml.pre").value_or("default");
    const PreTokenizerSpec* spec = find_pretokenizer(name);
    if (!spec) throw file.error("key 'tokenizer.ggml.pre': unknown pre-tokenizer " + quoted(name));
    impl = std::make_shared<Impl>(file, spec);
    impl->description = "bpe (" + std::string(name) + ")";
  } else {
    throw file.error("key 'tokenizer.ggml.model': unknown tokenizer " + quoted(*model) + ", known are gpt2 and llama");
  }
  return std::shared_ptr<const Tokenizer>(new Tokenizer(std::move(impl)));
}

Tokenizer::Tokenizer(std::shared_ptr<const Impl> impl) : impl_(std::move(impl)) {}

std::vector<TokenId> Tokenizer::encode(std::string_view text, EncodeOptions options) const {
  const Impl& impl = *impl_;
  std::vector<TokenId> out;
  std::string memory;
  if (std::holds_alternative<Spm>(impl.model)) text = Spm::without_marks(text, memory);
  if (options.add_special && impl.add_bos && impl.vocabulary.bos()) out.push_back(*impl.vocabulary.bos());
  const SpecialTokens& specials = options.parse_special ? impl.special : impl.user_defined;
  bool at_border = true;  // the beginning of the text, or behind a special token
  for (size_t at = 0; at < text.size();) {
    const SpecialTokens::Found found = specials.find(text, at);
    impl.encode_plain(text.substr(at, found.at - at), at_border, out);
    at = found.at;
    if (found.id == kNoToken) break;
    out.push_back(found.id);
    at += impl.vocabulary.text(found.id).size();
    at_border = true;
  }
  if (options.add_special && impl.add_eos && impl.vocabulary.eos()) out.push_back(*impl.vocabulary.eos());
  return out;
}

std::string Tokenizer::decode(std::span<const TokenId> ids, bool special) const {
  std::string out;
  bool at_start = true;
  for (const TokenId id : ids) impl_->append_text(id, special, at_start, out);
  return out;
}

std::string_view Tokenizer::piece(TokenId id) const {
  return id < impl_->vocabulary.size() ? impl_->vocabulary.text(id) : std::string_view();
}

uint32_t Tokenizer::vocabulary_size() const { return impl_->vocabulary.size(); }
bool Tokenizer::is_control(TokenId id) const { return id < vocabulary_size() && impl_->vocabulary.is_silent(id); }
bool Tokenizer::is_end(TokenId id) const { return impl_->vocabulary.is_end(id); }
std::optional<TokenId> Tokenizer::bos() const { return impl_->vocabulary.bos(); }
std::optional<TokenId> Tokenizer::eos() const { return impl_->vocabulary.eos(); }
bool Tokenizer::adds_bos() const { return impl_->add_bos && bos().has_value(); }
const std::string& Tokenizer::description() const { return impl_->description; }

StreamDecoder::StreamDecoder(std::shared_ptr<const Tokenizer> tokenizer, bool at_start, bool special)
    : tokenizer_(std::move(tokenizer)), at_start_(at_start), special_(special) {}

std::string StreamDecoder::push(TokenId id) {
  tokenizer_->impl_->append_text(id, special_, at_start_, pending_);
  // Everything up to a character that the next token may complete.
  const char* const end = pending_.data() + pending_.size();
  size_t whole = 0;
  while ((whole += valid_utf8_prefix(std::string_view(pending_).substr(whole))) < pending_.size()) {
    const Utf8Step step = utf8_step(pending_.data() + whole, end);
    if (step.kind == Utf8::truncated) break;
    whole += step.length;
  }
  std::string out = replace_invalid_utf8(std::string_view(pending_).substr(0, whole));
  pending_.erase(0, whole);
  return out;
}

std::string StreamDecoder::finish() { return replace_invalid_utf8(std::exchange(pending_, {})); }

}  // namespace ellm::format
