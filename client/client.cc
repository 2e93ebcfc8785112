// What each call sends and what it makes of the replies.
#include "client/client.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cmath>
#include <iterator>
#include <limits>
#include <system_error>

#include "client/connection.h"
#include "client/link.h"

namespace ellm::client {
namespace {

[[noreturn]] void unexpected(const Message& message) {
  const char* name = std::visit([](const auto& m) { return std::remove_cvref_t<decltype(m)>::kName; }, message);
  throw ConnectionError(ConnectionError::Kind::protocol, std::string("ellmd answered with an unexpected ") + name,
                        true);
}

/// A request with one reply.
template <class Reply>
class ReplyCall : public Call {
 public:
  bool accept(Message& message) override {
    auto* reply = std::get_if<Reply>(&message);
    if (!reply) unexpected(message);
    reply_ = std::move(*reply);
    return true;
  }
  Reply take() { return std::move(reply_); }

 private:
  Reply reply_;
};

class ScoreCall : public Call {
 public:
  bool accept(Message& message) override {
    auto* piece = std::get_if<ScoreReply>(&message);
    if (!piece) unexpected(message);
    auto append = [](auto& to, auto& from) {
      to.insert(to.end(), std::make_move_iterator(from.begin()), std::make_move_iterator(from.end()));
    };
    append(scores_.tokens, piece->tokens);
    append(scores_.log_probs, piece->log_probs);
    append(scores_.top, piece->top);
    if (piece->last) scores_.usage = piece->usage;
    return piece->last;
  }
  Scores take() { return std::move(scores_); }

 private:
  Scores scores_;
};

constexpr uint32_t kMostSamples = 1 << 16;  // no daemon allows more: limits.samples

/// Closed at the end of the call: the daemon has its own by then.
struct OpenFiles {
  std::vector<int> descriptors;
  ~OpenFiles() {
    for (int fd : descriptors) close(fd);
  }
  /// Returns the length.
  uint64_t open(const std::string& path) {
    struct stat status{};
    int fd = ::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK);
    if (fd >= 0) descriptors.push_back(fd);
    if (fd < 0 || fstat(fd, &status) != 0)
      throw std::system_error(errno, std::generic_category(), "cannot open " + path);
    return static_cast<uint64_t>(status.st_size);
  }
};

void require(const Client& client, const char* feature, const char* what) {
  if (client.knows(feature)) return;
  throw ClientError(ErrorCode::unknown_message, client.server().software + " is too old to " + what +
                                                    ": install the same release of both, and restart ellmd");
}

}  // namespace

class CompletionCall : public Call {
 public:
  CompletionCall(uint32_t samples, OnToken on_token, OnEnd on_end)
      : on_token_(std::move(on_token)), on_end_(std::move(on_end)) {
    if (samples > 1) completion_.others.resize(std::min(samples, kMostSamples) - 1);
    for (uint32_t i = 0; i < completion_.others.size(); i++) completion_.others[i].sample = i + 1;
  }

  bool accept(Message& message) override {
    if (auto* token = std::get_if<Token>(&message)) {
      Completion& completion = sample(token->sample, message);
      completion.text += token->text;
      completion.tokens.insert(completion.tokens.end(), token->tokens.begin(), token->tokens.end());
      completion.logprobs.insert(completion.logprobs.end(), token->logprobs.begin(), token->logprobs.end());
      if (on_token_) on_token_(*token);
      return false;
    }
    auto* done = std::get_if<Done>(&message);
    if (!done) unexpected(message);
    Completion& completion = sample(done->sample, message);
    completion.finish_reason = done->finish_reason;
    completion.model = std::move(done->model);
    completion.seed = done->seed;
    completion.usage = done->usage;
    completion.timings = done->timings;
    return done->remaining == 0;
  }
  void before_end(std::exception_ptr error) noexcept override {
    if (on_end_) on_end_(completion_, error);
  }
  Completion take() { return std::move(completion_); }

 private:
  Completion& sample(uint32_t index, const Message& message) {
    if (index > completion_.others.size()) unexpected(message);
    return index == 0 ? completion_ : completion_.others[index - 1];
  }

  OnToken on_token_;
  OnEnd on_end_;
  Completion completion_;
};

// ---- the public face -------------------------------------------------------------------------------------

double Scores::perplexity() const {
  if (log_probs.empty()) return std::numeric_limits<double>::quiet_NaN();
  double sum = 0;
  for (float log_prob : log_probs) sum += log_prob;
  return std::exp(-sum / static_cast<double>(log_probs.size()));
}

struct Client::State {
  explicit State(ClientOptions given) : link(std::move(given)) {}
  Link link;

  /// What an older daemon would not heed, but for the priority.
  template <class Request>
  void require_known(const Client& client, const Request& request) {
    if (!request.namespace_.empty()) require(client, kFeatureCache, "use a namespace");
    if (request.deadline_ms != 0) require(client, kFeatureDeadline, "end a request at a deadline");
    if constexpr (requires { request.n; }) {
      if (request.n != 1) require(client, kFeatureSamples, "draw several samples of a prompt");
    }
  }

  /// One call, sent again where the daemon cannot have begun it.
  template <class C, class Request>
  auto call(const std::shared_ptr<C>& call, Request request) {
    for (int attempt = 0;; attempt++) {
      std::shared_ptr<Connection> connection = link.get();
      try {
        connection->submit(request, call);
      } catch (const ConnectionError&) {  // lost since
        if (attempt == kAttempts - 1) throw;
        continue;
      }
      connection->wait(*call, link.options().interrupted);
      if (!call->error) return call->take();
      if (attempt == kAttempts - 1 || !link.may_repeat(*call, connection)) std::rethrow_exception(call->error);
      call->ended = call->refused = false;
      call->error = nullptr;
    }
  }
  template <class Reply, class Request>
  Reply ask(Request&& request) {
    return call(std::make_shared<ReplyCall<Reply>>(), std::forward<Request>(request));
  }
  template <class Request>
  Completion complete(const Client& client, Request request, OnToken on_token) {
    require_known(client, request);
    return call(std::make_shared<CompletionCall>(request.n, std::move(on_token), nullptr), std::move(request));
  }
  template <class Request>
  Running start(const Client& client, Request request, OnToken on_token, OnEnd on_end) {
    require_known(client, request);
    auto call = std::make_shared<CompletionCall>(request.n, std::move(on_token), std::move(on_end));
    call->background = true;
    std::shared_ptr<Connection> connection = link.get();
    connection->submit(request, call);
    return Running(connection, call);
  }

 private:
  static constexpr int kAttempts = 3;  // connections in a row that end between hello and the request
};

Client::Client(ClientOptions options) {
  if (options.software.empty()) options.software = "libellm " ELLM_VERSION;
  state_ = std::make_unique<State>(std::move(options));
  state_->link.get();
}

Client::~Client() { state_->link.close(); }

Completion Client::generate(Generate request, OnToken on_token) {
  return state_->complete(*this, std::move(request), std::move(on_token));
}
Completion Client::chat(Chat request, OnToken on_token) {
  return state_->complete(*this, std::move(request), std::move(on_token));
}
TokenizeReply Client::tokenize(Tokenize request) { return state_->ask<TokenizeReply>(std::move(request)); }
std::string Client::detokenize(Detokenize request) { return state_->ask<TextReply>(std::move(request)).text; }
std::string Client::render_template(RenderTemplate request) { return state_->ask<TextReply>(std::move(request)).text; }
Scores Client::score(Score request) {
  state_->require_known(*this, request);
  return state_->call(std::make_shared<ScoreCall>(), std::move(request));
}
StatusReply Client::status() { return state_->ask<StatusReply>(Status()); }
ModelsReply Client::list_models() { return state_->ask<ModelsReply>(Models()); }
std::vector<ModelInfo> Client::models(ModelsAction action, const std::string& name) {
  return state_->ask<ModelsReply>(Models{0, action, name}).models;
}
ModelInfo Client::add_model(const std::string& name, const std::vector<std::string>& paths, Adding adding) {
  require(*this, kFeatureManage, "take files from its clients");
  AddModel request{0, name, {}, adding != Adding::load, adding == Adding::replace};
  OpenFiles files;
  for (const std::string& path : paths) request.files.push_back({path, files.open(path)});
  const auto call = std::make_shared<ReplyCall<ModelsReply>>();
  call->descriptors = files.descriptors;
  std::vector<ModelInfo> models = state_->call(call, std::move(request)).models;
  if (models.empty()) throw ConnectionError(ConnectionError::Kind::protocol, "ellmd did not say which model it took");
  return std::move(models.front());
}
void Client::remove_model(const std::string& name) {
  require(*this, kFeatureManage, "remove models");
  models(ModelsAction::remove, name);
}
CacheReply Client::cache(Cache request) {
  require(*this, kFeatureCache, "show and change what it has cached");
  return state_->ask<CacheReply>(std::move(request));
}
std::vector<CachedPrefix> Client::cached_prefixes(const std::string& model, const std::string& name_space) {
  std::vector<CachedPrefix> all;
  if (model.empty()) {
    for (const ModelInfo& loaded : status().models) {
      auto some = cached_prefixes(loaded.name, name_space);
      std::move(some.begin(), some.end(), std::back_inserter(all));
    }
    std::ranges::stable_sort(all, {}, &CachedPrefix::age_s);
    return all;
  }
  Cache request;
  request.model = model;
  request.namespace_ = name_space;
  do {
    CacheReply reply = cache(request);
    std::move(reply.prefixes.begin(), reply.prefixes.end(), std::back_inserter(all));
    request.cursor = reply.next;
  } while (request.cursor != 0);
  std::ranges::stable_sort(all, {}, &CachedPrefix::age_s);
  return all;
}
void Client::cancel(uint32_t id) { state_->ask<Ok>(Cancel{0, id}); }

Running Client::start(Generate request, OnToken on_token, OnEnd on_end) {
  return state_->start(*this, std::move(request), std::move(on_token), std::move(on_end));
}
Running Client::start(Chat request, OnToken on_token, OnEnd on_end) {
  return state_->start(*this, std::move(request), std::move(on_token), std::move(on_end));
}

bool Client::may_start_again(const Running& failed) {
  failed.connection_->wait(*failed.call_, nullptr);  // `on_end` may know before it has ended
  return failed.call_->error && state_->link.may_repeat(*failed.call_, failed.connection_);
}

bool Client::knows(const char* feature) const {
  const std::vector<std::string> features = server().features;
  return std::find(features.begin(), features.end(), feature) != features.end();
}
Hello Client::server() const { return state_->link.server(); }

Running::Running(std::shared_ptr<Connection> connection, std::shared_ptr<CompletionCall> call)
    : connection_(std::move(connection)), call_(std::move(call)) {}

uint32_t Running::id() const { return call_->id; }
bool Running::ready() const { return connection_->ended(*call_); }
bool Running::wait_for(std::chrono::milliseconds time) const {
  return connection_->wait_until(*call_, std::chrono::steady_clock::now() + time);
}
Completion Running::get() {
  connection_->wait(*call_, nullptr);
  if (call_->error) std::rethrow_exception(call_->error);
  return call_->take();
}
void Running::cancel() const { connection_->post_cancel(call_->id); }

}  // namespace ellm::client
