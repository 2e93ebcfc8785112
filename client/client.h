// The client library: blocking calls, and requests that run in the background, over one connection to ellmd.
// A Client may be used from any number of threads at once; many requests can be in flight. No thread is started unless
// start() is called: a blocking call reads the socket itself and delivers what arrives for the others meanwhile.
// A daemon that is not there yet is waited for (ClientOptions::wait); where it has restarted, the next call connects
// anew. A request that the daemon cannot have begun is sent again; one that it may have begun is not, and its
// ConnectionError says so (request_sent()).
//
//   ellm::client::Client client;
//   ellm::client::Chat request;
//   request.messages = {{"user", "Why is the sky blue?", {}, ""}};
//   client.chat(request, [](const ellm::client::Token& token) { std::cout << token.text << std::flush; });
#pragma once
#include <chrono>
#include <cstdint>
#include <exception>
#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "client/errors.h"
#include "client/messages.h"

namespace ellm::client {

/// An answer, whole; with n > 1 sample 0, and the others in `others`.
struct Completion {
  std::string text;
  std::vector<uint32_t> tokens;        // generated ids, to be sent back as ChatMessage::token_ids in the next turn
  std::vector<TokenLogprob> logprobs;  // with Sampling::want_logprobs, one per token
  FinishReason finish_reason = FinishReason::stop;
  std::string model;
  uint64_t seed = 0;
  Usage usage;      // with n > 1 the prompt is counted here, not with the others
  Timings timings;  // milliseconds, tokens per second
  uint32_t sample = 0;
  std::vector<Completion> others = {};  // samples 1 … n - 1
};

/// Log-probabilities (natural logarithm) of a text's own tokens.
struct Scores {
  std::vector<uint32_t> tokens;                              // n
  std::vector<float> log_probs;                              // of tokens 1 … n - 1
  std::vector<std::vector<std::pair<uint32_t, float>>> top;  // with Score::top: per position, best first
  Usage usage;
  /// exp of the mean negative log-probability; NaN with fewer than two tokens.
  double perplexity() const;
};

/// Called with every piece of an answer as it arrives. Must not make a blocking call on the same Client. What it throws
/// cancels the request and comes out of the call.
using OnToken = std::function<void(const Token&)>;

inline constexpr std::chrono::milliseconds kDefaultWait{3000};

struct ClientOptions {
  std::string socket_path = {};  // empty: default_socket_path() of client/places.h
  std::string software = {};     // said in hello; empty: this library and its version
  /// Asked while a blocking call waits: after a signal, and every 100 ms. True cancels the call's request; a completion
  /// then ends with FinishReason::cancelled.
  std::function<bool()> interrupted = {};
  /// How long a call waits for a daemon that does not listen yet, or no longer because it restarts. 0: it is there, or
  /// the call fails. A daemon that listens may take longer to say hello: it may be loading a model.
  std::chrono::milliseconds wait = kDefaultWait;
};

/// What add_model does with the files.
enum class Adding { load, install, replace };  // replace: installs instead of one that is there

class Connection;
class CompletionCall;

/// A request that runs in the background. The handle may be dropped: the request goes on.
class Running {
 public:
  uint32_t id() const;  // of the request on its connection
  bool ready() const;
  /// False when the time has passed first.
  bool wait_for(std::chrono::milliseconds time) const;
  /// Waits and takes the result, once. Throws ClientError, ConnectionError.
  Completion get();
  /// Asks the daemon to stop; get() then returns what there is, with FinishReason::cancelled. No effect after the end.
  void cancel() const;

 private:
  friend class Client;
  Running(std::shared_ptr<Connection> connection, std::shared_ptr<CompletionCall> call);
  std::shared_ptr<Connection> connection_;
  std::shared_ptr<CompletionCall> call_;
};

/// How a background request ended: `error` is null, or holds a ClientError or ConnectionError.
using OnEnd = std::function<void(Completion, std::exception_ptr error)>;

class Client {
 public:
  /// Connects and says hello. Throws ConnectionError, which says what to do.
  explicit Client(ClientOptions options = {});
  explicit Client(const std::string& socket_path) : Client(ClientOptions{socket_path}) {}
  /// Closes the connection: the daemon cancels what is in flight; background requests end in a ConnectionError.
  ~Client();
  Client(const Client&) = delete;
  Client& operator=(const Client&) = delete;

  // Blocking calls. The request's `id` is set here. Each throws ClientError (the daemon's answer: code, message, hint)
  // or ConnectionError (the daemon is gone; the next call looks for it again).
  Completion generate(Generate request, OnToken on_token = {});
  Completion chat(Chat request, OnToken on_token = {});
  TokenizeReply tokenize(Tokenize request);
  std::string detokenize(Detokenize request);
  std::string render_template(RenderTemplate request);
  Scores score(Score request);
  StatusReply status();
  /// The models that there are, and in `warnings` which models directories cannot be read.
  ModelsReply list_models();
  std::vector<ModelInfo> models(ModelsAction action = ModelsAction::list, const std::string& name = {});
  /// Hands a model's files (all parts of a split one, in order) to the daemon, which need not be able to open them: to
  /// be loaded under `name`, or with `install` to be copied into its models directory. Throws std::system_error where
  /// one cannot be opened.
  ModelInfo add_model(const std::string& name, const std::vector<std::string>& paths, Adding adding = Adding::load);
  /// Removes a model that is not loaded from the models directory.
  void remove_model(const std::string& name);
  /// One page of the cache's list, its totals, or a change to it; ClientError where the daemon is too old.
  CacheReply cache(Cache request);
  /// All prefixes of one model (empty: of all that are loaded), those used last first.
  std::vector<CachedPrefix> cached_prefixes(const std::string& model = {}, const std::string& name_space = {});
  /// Cancels a request of this client by its id; throws ClientError no_such_request when it has ended.
  void cancel(uint32_t id);

  // Background requests. They are not sent again by themselves, as the blocking calls are: connecting to the daemon's
  // successor may take a while, for which there is no thread. may_start_again() says where that is allowed. The
  // callbacks run on the client's own thread or on one that is in a blocking call, in order for each request; `on_end`
  // once, before get() returns, and must not throw.
  Running start(Generate request, OnToken on_token = {}, OnEnd on_end = {});
  Running start(Chat request, OnToken on_token = {}, OnEnd on_end = {});
  /// Whether the daemon cannot have begun a request that has failed. Connects anew where its daemon stops, so that the
  /// next start() goes to the successor; false where there is none within ClientOptions::wait. Waits for the request's
  /// end; not to be called in a callback.
  bool may_start_again(const Running& failed);

  /// What the daemon said about itself when it was last connected to.
  Hello server() const;
  /// The daemon names this feature.
  bool knows(const char* feature) const;

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace ellm::client
