// See conversation.h.
#include "daemon/conversation.h"

#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <charconv>

#include "client/utf8.h"
#include "daemon/cache_query.h"
#include "daemon/chat_prompt.h"
#include "daemon/completion.h"
#include "daemon/format/model_name.h"
#include "daemon/model_store.h"
#include "daemon/serve/cache_job.h"
#include "daemon/validate.h"

namespace ellm::daemon {
namespace {

using client::ErrorCode;

constexpr uint32_t kBusyRetryMs = 200;
constexpr size_t kLongestName = 4096;

/// A request with one reply, worked on in the pool: cancelling it is forgetting it. Work that has not begun is left
/// out.
class SimpleJob : public Job {
 public:
  SimpleJob(std::weak_ptr<Conversation> conversation, uint32_t id) : conversation_(std::move(conversation)), id_(id) {}
  bool cancelled() const { return cancelled_; }  // any thread
  void cancel() override {
    cancelled_ = true;
    if (const auto conversation = conversation_.lock()) {
      conversation->finish(id_, client::Error{id_, ErrorCode::cancelled, "the request was cancelled", 0});
    }
  }

 private:
  std::weak_ptr<Conversation> conversation_;
  uint32_t id_;
  std::atomic<bool> cancelled_{false};
};

client::Error to_error(uint32_t id, const Failure& failure) {
  return {id, failure.code, failure.message, failure.retry_after_ms};
}

/// Work in the pool, its outcome as a frame; everything that it can throw becomes an Error.
template <class Work>
std::string frame_of(uint32_t id, Work&& work) {
  try {
    return client::encode_frame(work());
  } catch (const PromptError& e) {
    return client::encode_frame(client::Error{id, e.code(), e.what(), 0});
  } catch (const std::length_error& e) {
    return client::encode_frame(client::Error{id, ErrorCode::too_large, e.what(), 0});
  } catch (const std::bad_alloc&) {
    return client::encode_frame(
        client::Error{id, ErrorCode::too_large, "there is not enough memory for this request", 0});
  } catch (const std::exception& e) {
    return client::encode_frame(client::Error{id, ErrorCode::internal, e.what(), 0});
  }
}

void check_text(const std::optional<std::string>& fault) {
  if (fault) throw PromptError(ErrorCode::bad_request, *fault);
}

// What a completion's prompt is made of, in the pool.
Prompt prompt_of(const client::Generate& r, const LoadedModel& loaded) {
  check_text(text_fault(r));
  return {r.use_tokens ? r.tokens : text_prompt(*loaded.model, r.prompt)};
}
Prompt prompt_of(const client::Chat& r, const LoadedModel& loaded) {
  check_text(text_fault(r));
  return chat_prompt(loaded.name, *loaded.model, r);
}
Prompt prompt_of(const client::Score& r, const LoadedModel& loaded) {
  check_text(text_fault(r));
  return {r.use_tokens ? r.tokens : text_prompt(*loaded.model, r.text)};
}

Prompt prompt_of(const client::Cache& r, const LoadedModel& loaded) {
  if (r.messages.empty()) {
    client::Generate plain;
    plain.prompt = r.text;
    return prompt_of(plain, loaded);
  }
  client::Chat chat;
  chat.messages = r.messages;
  chat.tools = r.tools;
  chat.variables = r.variables;
  return prompt_of(chat, loaded);
}

client::TokenizeReply tokenize(const client::Tokenize& r, const format::Tokenizer& tokenizer) {
  client::TokenizeReply reply{r.id, tokenizer.encode(r.text, {r.add_special, r.parse_special}), {}};
  reply.pieces.reserve(reply.tokens.size());
  for (uint32_t token : reply.tokens) reply.pieces.emplace_back(tokenizer.piece(token));
  return reply;
}

client::TextReply detokenize(const client::Detokenize& r, const LoadedModel& loaded) {
  const uint32_t vocabulary = loaded.model->tokenizer()->vocabulary_size();
  for (size_t i = 0; i < r.tokens.size(); ++i) {
    if (r.tokens[i] < vocabulary) continue;
    throw PromptError(ErrorCode::bad_request, "tokens[" + std::to_string(i) + "] is " + std::to_string(r.tokens[i]) +
                                                  "; model '" + loaded.name + "' has a vocabulary of " +
                                                  std::to_string(vocabulary));
  }
  return {r.id, loaded.model->tokenizer()->decode(r.tokens, r.special)};
}

}  // namespace

Conversation::Conversation(Services& services, const Peer& peer, std::shared_ptr<Holdings> holdings,
                           std::function<void(std::string)> send)
    : services_(services), peer_(peer), holdings_(std::move(holdings)), send_(std::move(send)) {}

// ---- frames in and out ----------------------------------------------------------------------------------------------

bool Conversation::receive(Decoded decoded, Charge bytes, HandedOver handed) {
  if (closing_ || closed_) return false;
  if (const auto* failure = std::get_if<client::DecodeFailure>(&decoded)) {
    // Without an id, or before hello, nobody knows what this peer speaks.
    if (failure->id == 0 || !greeted_) closing_ = true;
    error(failure->id, failure->code, failure->message);
    return !closing_;
  }
  auto& message = std::get<client::Message>(decoded);
  if (!greeted_ && !std::holds_alternative<client::Hello>(message)) {
    refuse(ErrorCode::bad_request, "a connection begins with 'hello'");
    return false;
  }
  arriving_ = std::move(bytes);
  handed_ = std::move(handed);
  std::visit([this](auto&& m) { on(std::move(m)); }, std::move(message));
  arriving_ = Charge();
  handed_ = HandedOver();
  return !closing_;
}

void Conversation::refuse(ErrorCode code, const std::string& why) {
  closing_ = true;
  error(0, code, why);
}

void Conversation::close() {
  if (std::exchange(closed_, true)) return;
  const auto gone = std::exchange(in_flight_, {});
  services_.leave(gone.size());
  for (auto& [id, job] : gone) job->cancel();
}

void Conversation::cancel_all() {
  std::vector<std::shared_ptr<Job>> jobs;  // cancelling takes them out of the map
  for (auto& [id, job] : in_flight_) jobs.push_back(job);
  for (auto& job : jobs) job->cancel();
}

void Conversation::send(const client::Message& message) {
  if (!closed_) send_(client::encode_frame(message));
}

void Conversation::finish(uint32_t id, const client::Message& message) {
  if (const auto* failure = std::get_if<client::Error>(&message)) services_.metrics.error(failure->code);
  if (closed_) return;
  finish_frame(id, frame_of(id, [&] { return message; }));
}

void Conversation::finish_frame(uint32_t id, std::string frame) {
  if (closed_) return;
  const auto found = in_flight_.find(id);
  if (found == in_flight_.end()) return;  // cancelled meanwhile
  const std::shared_ptr<Job> kept = std::move(found->second);
  in_flight_.erase(found);
  send_(std::move(frame));
  services_.leave(1);
}

void Conversation::error(uint32_t id, ErrorCode code, const std::string& message, uint32_t retry_after_ms) {
  services_.metrics.error(code);
  send(client::Error{id, code, message, retry_after_ms});
}

// ---- requests in general --------------------------------------------------------------------------------------------

/// Limits and sense of a new request, and what it is charged for (as that many requests); says why it is refused.
std::optional<Conversation::Charges> Conversation::admit(uint32_t id, uint32_t requests) {
  const auto& limits = services_.config.limits;
  if (id == 0) {
    refuse(ErrorCode::bad_request, "id is 0; a request's id is 1 or more");
  } else if (in_flight_.contains(id)) {
    // No answer under the id itself: it would end the request that has it.
    refuse(ErrorCode::bad_request, "id " + std::to_string(id) + " is in use by a request that has not ended");
  } else if (services_.draining) {
    error(id, ErrorCode::shutting_down, "ellmd is shutting down");
  } else if (in_flight_.size() >= limits.requests_per_connection) {
    error(id, ErrorCode::busy,
          "this connection has " + std::to_string(in_flight_.size()) + " unfinished requests, the limit", kBusyRetryMs);
  } else if (!arriving_) {
    error(id, ErrorCode::busy, "this user's unfinished requests hold too many bytes", kBusyRetryMs);
  } else if (Charge request = Charge::take(holdings_, &Holdings::requests, requests, limits.requests_per_user);
             !request) {
    error(id, ErrorCode::busy, "this user has too many unfinished requests", kBusyRetryMs);
  } else {
    return Charges{std::move(request), std::move(arriving_)};
  }
  return std::nullopt;
}

void Conversation::add(uint32_t id, std::shared_ptr<Job> job) {
  in_flight_[id] = std::move(job);
  ++services_.in_flight;
}

template <class Request>
void Conversation::complete(Request&& r, const char* kind) {
  uint32_t samples = 1;
  if constexpr (requires { r.n; }) {
    samples = std::clamp(r.n, 1u, services_.config.limits.most_samples());
  }
  auto charges = admit(r.id, samples);
  if (!charges) return;
  if constexpr (requires { r.sampling; }) {
    if (auto fault = size_fault(r.sampling)) return error(r.id, ErrorCode::bad_request, *fault);
    if (r.n != samples) {
      return error(r.id, ErrorCode::bad_request,
                   "n is " + std::to_string(r.n) + "; allowed is 1 to " +
                       std::to_string(services_.config.limits.most_samples()) + " (limits.samples)");
    }
  }
  CompletionRequest request;
  if (!find_namespace(r.id, r.namespace_, request.name_space)) return;
  request.id = r.id;
  request.model = r.model;
  request.kind = kind;
  request.priority = r.priority == client::Priority::batch ? serve::Priority::batch : serve::Priority::interactive;
  request.deadline_ms = r.deadline_ms;
  request.samples = samples;
  if constexpr (requires { r.sampling; }) {
    request.sampling = std::move(r.sampling);
    request.continues_text = std::is_same_v<Request, client::Chat>;
  } else {
    request.score = true;
    request.score_top = r.top;
  }
  request.weight = PreparePool::weight_of(charges->bytes.amount());
  const uint32_t id = r.id;
  const auto paid = std::make_shared<Paid<Request>>(std::move(r), std::move(*charges));
  request.prompt = [paid](const LoadedModel& loaded) { return prompt_of(paid->message, loaded); };
  auto completion = std::make_shared<Completion>(services_, peer_, weak_from_this(), std::move(request));
  add(id, completion);
  completion->start();
}

/// A request with one reply that needs a model: `work` makes it, in the pool.
template <class Request, class Work>
void Conversation::with_model(Request&& r, Work work) {
  auto charges = admit(r.id);
  if (!charges) return;
  const uint32_t id = r.id;
  const auto job = std::make_shared<SimpleJob>(weak_from_this(), id);
  add(id, job);
  const auto paid = std::make_shared<Paid<Request>>(std::move(r), std::move(*charges));
  services_.registry.resolve(
      paid->message.model, [self = shared_from_this(), id, job, paid, work](const Registry::Resolved& model) {
        if (job->cancelled()) return;
        if (const auto* failure = std::get_if<Failure>(&model)) return self->finish(id, to_error(id, *failure));
        const auto loaded = std::get<std::shared_ptr<const LoadedModel>>(model);
        const auto weight = PreparePool::weight_of(paid->charges.bytes.amount());
        auto prepare = [self, id, job, paid, work, loaded]() mutable {
          if (job->cancelled()) return;
          std::string frame = frame_of(id, [&]() -> client::Message {
            check_text(text_fault(paid->message));
            return work(paid->message, *loaded);
          });
          // What was paid for goes before the answer does: the next request may come at once.
          self->services_.loop.post([self, id, paid = std::move(paid), frame = std::move(frame)]() mutable {
            paid.reset();
            self->finish_frame(id, std::move(frame));
          });
        };
        self->services_.pool.submit(std::move(prepare), weight);
      });
}

// ---- each request ---------------------------------------------------------------------------------------------------

void Conversation::on(client::Hello&& hello) {
  if (greeted_) return refuse(ErrorCode::bad_request, "hello twice");
  if (hello.version != client::kProtocolVersion) {
    return refuse(ErrorCode::unsupported_version, "ellmd " ELLM_VERSION " speaks protocol version " +
                                                      std::to_string(client::kProtocolVersion) + ", not " +
                                                      std::to_string(hello.version));
  }
  greeted_ = true;
  const auto& features = hello.features;
  knows_denied_ = std::find(features.begin(), features.end(), client::kFeatureDenied) != features.end();
  send(client::Hello{
      client::kProtocolVersion,
      "ellmd " ELLM_VERSION,
      {client::kFeatureManage, client::kFeatureCache, client::kFeatureSamples, client::kFeatureDeadline}});
}

void Conversation::on(client::Generate&& request) { complete(std::move(request), "generate"); }
void Conversation::on(client::Chat&& request) { complete(std::move(request), "chat"); }
void Conversation::on(client::Score&& request) { complete(std::move(request), "score"); }

void Conversation::on(client::Tokenize&& request) {
  with_model(std::move(request), [](const client::Tokenize& r, const LoadedModel& loaded) {
    return tokenize(r, *loaded.model->tokenizer());
  });
}

void Conversation::on(client::Detokenize&& request) {
  with_model(std::move(request),
             [](const client::Detokenize& r, const LoadedModel& loaded) { return detokenize(r, loaded); });
}

void Conversation::on(client::RenderTemplate&& request) {
  with_model(std::move(request), [](const client::RenderTemplate& r, const LoadedModel& loaded) {
    return client::TextReply{r.id, render_template(loaded.name, *loaded.model, r.variables)};
  });
}

void Conversation::on(client::Cancel&& request) {
  const auto found = in_flight_.find(request.target);
  if (found == in_flight_.end()) {
    return error(request.id, ErrorCode::no_such_request,
                 "no request with id " + std::to_string(request.target) + " is in flight on this connection");
  }
  const auto job = found->second;  // cancelling may take it out of the map
  send(client::Ok{request.id});
  job->cancel();
}

void Conversation::on(client::Status&& request) {
  client::StatusReply reply;
  reply.id = request.id;
  reply.version = ELLM_VERSION;
  reply.kernels = services_.kernels;
  reply.cpu = services_.cpu;
  reply.threads = services_.threads;
  reply.pid = static_cast<uint32_t>(::getpid());
  reply.uptime_s = std::chrono::duration<double>(std::chrono::steady_clock::now() - services_.start).count();
  reply.models = services_.registry.loaded();
  const serve::EngineCounters counters = services_.engine.counters();
  if (counters.running + counters.queued != 0) {
    for (const serve::RequestRow& row : services_.engine.requests()) {
      if (!peer_.admin && row.uid != peer_.uid) continue;
      reply.requests.push_back({row.id, row.uid, row.pid, row.model, row.kind, row.state, row.prompt_tokens,
                                row.done_tokens, row.completion_tokens, row.age_ms});
    }
  }
  reply.running = counters.running;
  reply.queued = counters.queued;
  reply.connections = services_.connections;
  reply.served = counters.served;
  reply.prompt_tokens = counters.prompt_tokens;
  reply.cached_tokens = counters.cached_tokens;
  reply.completion_tokens = counters.completion_tokens;
  reply.warnings = services_.registry.warnings();
  reply.admin = peer_.admin;
  reply.stats_page = services_.stats_page.path();
  if (const auto disk = services_.registry.disk()) {
    const serve::DiskCounters c = disk->counters();
    reply.disk = {c.bytes, c.budget_bytes, c.pages_written, c.pages_read, c.pages_damaged, c.files_skipped, c.writing};
  }
  send(reply);
}

void Conversation::deny(uint32_t id, const std::string& what) {
  const std::string& group = services_.config.admin_group;
  deny_to(id, "only an administrator may " + what + " (root, the daemon's user" +
                  (group.empty() ? ")" : ", members of group " + group + ")"));
}

void Conversation::deny_to(uint32_t id, const std::string& message) {
  error(id, knows_denied_ ? ErrorCode::denied : ErrorCode::bad_request, message);
}

void Conversation::on(client::Models&& request) {
  const uint32_t id = request.id;
  auto charges = admit(id);
  if (!charges) return;
  if (request.action != client::ModelsAction::list && !peer_.admin) {
    return deny(id, "load, unload and remove models");
  }
  if (request.name.size() > kLongestName || !client::is_utf8(request.name)) {
    return error(id, ErrorCode::bad_request, "models: the name is longer than 4096 bytes or not UTF-8");
  }
  add(id, std::make_shared<SimpleJob>(weak_from_this(), id));
  const auto self = shared_from_this();
  const auto paid = std::make_shared<Charges>(std::move(*charges));
  const auto answer = [self, id, paid](std::vector<client::ModelInfo> infos) {
    self->finish(id, client::ModelsReply{id, std::move(infos), {}});
  };
  switch (request.action) {
    case client::ModelsAction::list:
      return services_.registry.list([self, id, paid](std::vector<client::ModelInfo> infos) {
        self->finish(id, client::ModelsReply{id, std::move(infos), self->services_.registry.unreadable()});
      });
    case client::ModelsAction::load:
      return services_.registry.load(request.name, [self, id, answer](const Registry::Resolved& model) {
        if (const auto* failure = std::get_if<Failure>(&model)) return self->finish(id, to_error(id, *failure));
        auto infos = self->services_.registry.loaded();
        const auto& name = std::get<std::shared_ptr<const LoadedModel>>(model)->name;
        std::erase_if(infos, [&](const client::ModelInfo& info) { return info.name != name; });
        answer(std::move(infos));
      });
    case client::ModelsAction::unload:
      return services_.registry.unload(request.name, [self, id, answer](const std::optional<Failure>& failure) {
        if (failure) return self->finish(id, to_error(id, *failure));
        answer(self->services_.registry.loaded());
      });
    case client::ModelsAction::remove:
      return services_.registry.remove(request.name, [self, id, answer](const std::optional<Failure>& failure) {
        if (failure) return self->finish(id, to_error(id, *failure));
        answer({});
      });
  }
}

/// What is wrong with a model that is handed over, or empty.
std::string Conversation::fault_of(const client::AddModel& r) const {
  const size_t came = handed_.descriptors.size(), announced = r.files.size();
  if (const std::string fault = format::model_name_fault(r.name); !fault.empty()) return fault;
  if (announced == 0 || announced > client::kMaxModelFiles) {
    return std::to_string(announced) + " files; allowed are 1 to " + std::to_string(client::kMaxModelFiles);
  }
  if (came < announced) {
    return std::to_string(announced) + " files are announced, " + std::to_string(came) +
           " descriptors came with the frame" +
           (handed_.lost ? ": ellmd has too many open files (LimitNOFILE=, ulimit -n)" : "");
  }
  for (size_t i = 0; i < announced; ++i) {
    if (r.files[i].path.size() > kLongestName || !client::is_utf8(r.files[i].path))
      return "a path is longer than 4096 bytes or not UTF-8";
    const std::string fault = descriptor_fault(handed_.descriptors[i].get(), r.files[i].bytes);
    if (!fault.empty()) return r.files[i].path + " " + fault;
  }
  return {};
}

void Conversation::on(client::AddModel&& request) {
  const uint32_t id = request.id;
  auto charges = admit(id);
  if (!charges) return;
  if (!peer_.admin) return deny(id, "add models");
  if (const std::string fault = fault_of(request); !fault.empty())
    return error(id, ErrorCode::bad_request, "add_model: " + fault);
  const auto job = std::make_shared<SimpleJob>(weak_from_this(), id);
  add(id, job);
  handed_.descriptors.resize(request.files.size());  // what was not announced is closed
  auto files = std::make_shared<ModelSource>();
  for (size_t i = 0; i < request.files.size(); ++i) {
    files->files.push_back({std::move(request.files[i].path), handed_.descriptors[i].get()});
  }
  files->held = std::move(handed_);
  const auto self = shared_from_this();
  const auto paid = std::make_shared<Charges>(std::move(*charges));
  const auto answer = [self, id, paid](const std::variant<client::ModelInfo, Failure>& outcome) {
    if (const auto* failure = std::get_if<Failure>(&outcome)) return self->finish(id, to_error(id, *failure));
    self->finish(id, client::ModelsReply{id, {std::get<client::ModelInfo>(outcome)}, {}});
  };
  if (!request.install) return services_.registry.load_files(request.name, std::move(files), answer);
  services_.registry.install(
      request.name, std::move(files), request.replace, [job] { return job->cancelled(); }, answer);
}

// ---- the cache ------------------------------------------------------------------------------------------------------

/// The namespace that a request names, if it does. False: an error was sent.
bool Conversation::find_namespace(uint32_t id, const std::string& name, std::optional<uint64_t>& found) {
  if (name.empty()) return true;
  const Namespaces& namespaces = services_.namespaces;
  const auto* named = namespaces.find(name);
  if (named == nullptr) {
    const bool printable = name.size() <= 64 && client::is_utf8(name);
    error(id, ErrorCode::bad_request,
          "there is no namespace '" + (printable ? name : "…") + "' (see [namespaces] of ellmd.toml)");
    return false;
  }
  if (!namespaces.may_use(peer_, *named)) {
    deny_to(id, "namespace '" + name + "' is for the members of group " + named->group);
    return false;
  }
  found = named->id;
  return true;
}

/// Absent: an error was sent.
std::optional<CacheScope> Conversation::scope_of(const client::Cache& r) {
  std::optional<uint64_t> named;
  if (!find_namespace(r.id, r.namespace_, named)) return std::nullopt;
  CacheScope scope{named.value_or(shm::namespace_of_uid(peer_.uid)), {}};
  if (named) {
    scope.visible = {*named};
  } else {
    scope.visible = services_.namespaces.of(peer_);
    scope.visible.push_back(scope.name_space);
  }
  if (r.whose.empty()) return scope;
  if (r.action != client::CacheAction::stat && r.action != client::CacheAction::flush) {
    error(r.id, ErrorCode::bad_request, "whose is for stat and flush");
    return std::nullopt;
  }
  uint32_t uid = 0;
  const auto [end, fault] = std::from_chars(r.whose.data(), r.whose.data() + r.whose.size(), uid);
  const bool is_uid = fault == std::errc() && end == r.whose.data() + r.whose.size();
  if (!is_uid && r.whose != "all") {
    error(r.id, ErrorCode::bad_request, "whose is neither 'all' nor a uid");
    return std::nullopt;
  }
  if (!peer_.admin && !(is_uid && uid == peer_.uid)) {
    deny(r.id, "see and flush what others have cached");
    return std::nullopt;
  }
  scope.everybody = !is_uid;
  if (is_uid) scope.name_space = shm::namespace_of_uid(uid), scope.visible = {scope.name_space};
  return scope;
}

void Conversation::on(client::Cache&& request) {
  const uint32_t id = request.id;
  auto charges = admit(id);
  if (!charges) return;
  if (const std::string fault = cache_fault(request); !fault.empty())
    return error(id, ErrorCode::bad_request, "cache: " + fault);
  const auto scope = scope_of(request);
  if (!scope) return;
  if (request.action == client::CacheAction::warm)
    return warm(std::move(request), std::move(*charges), scope->name_space);
  const auto job = std::make_shared<SimpleJob>(weak_from_this(), id);
  add(id, job);
  const auto query = std::make_shared<CacheQuery>(std::move(request), *scope);
  const auto paid = std::make_shared<Charges>(std::move(*charges));
  auto prepare = [self = shared_from_this(), id, job, query, paid](const char* why) {
    self->services_.pool.submit(
        [self, id, job, query, paid, why] {
          if (job->cancelled()) return;
          std::string frame = frame_of(id, [&]() -> client::Message {
            if (why != nullptr) return client::Error{id, ErrorCode::busy, why, kBusyRetryMs};
            return query->reply(self->services_.namespaces);
          });
          self->services_.loop.post(
              [self, id, frame = std::move(frame)]() mutable { self->finish_frame(id, std::move(frame)); });
        },
        PreparePool::Weight::light);
  };
  services_.engine.visit_caches({query->request().model,
                                 [query](const std::string& name, const serve::Servable& servable,
                                         serve::PrefixCache& cache) { query->run(name, servable, cache); },
                                 [self = shared_from_this(), prepare](const char* why) {
                                   self->services_.loop.post([prepare, why] { prepare(why); });
                                 }});
}

/// A completion of which nobody sees the one token that it draws.
void Conversation::warm(client::Cache&& r, Charges charges, uint64_t name_space) {
  if (r.text.empty() == r.messages.empty())
    return error(r.id, ErrorCode::bad_request, "cache: warm: give a text or messages");
  CompletionRequest request;
  request.id = r.id;
  request.model = r.model;
  request.kind = "warm";
  request.warm = true;
  request.pin = r.pinned;
  request.name_space = name_space;
  request.sampling.temperature = 0;
  request.sampling.max_tokens = 1;
  request.weight = PreparePool::weight_of(charges.bytes.amount());
  const uint32_t id = r.id;
  const auto paid = std::make_shared<Paid<client::Cache>>(std::move(r), std::move(charges));
  request.prompt = [paid](const LoadedModel& loaded) { return prompt_of(paid->message, loaded); };
  auto completion = std::make_shared<Completion>(services_, peer_, weak_from_this(), std::move(request));
  add(id, completion);
  completion->start();
}

}  // namespace ellm::daemon
