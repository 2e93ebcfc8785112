// ellm.h: the connection, and calls with one reply.
#include "client/c_abi/handles.h"

using namespace ellm::client;
using namespace ellm::client::c_abi;

namespace {

int models(ellm_client* client, ModelsAction action, const char* name, ellm_reply** out) {
  return ask(client, out, [&](Client& c) {
    require(action == ModelsAction::list || name != nullptr, "the model's name is NULL");
    ellm_reply reply;
    reply.models = c.models(action, c_abi::name_of(name));
    return reply;
  });
}

}  // namespace

int ellm_connect(const ellm_connect_options* given, ellm_client** client) {
  return guarded([&] {
    require(client != nullptr, "where to put the client is NULL");
    ellm_connect_options known = ELLM_CONNECT_OPTIONS;
    if (given) {
      require(given->struct_size >= sizeof(size_t), "struct_size is not set");
      std::memcpy(&known, given, std::min(sizeof known, given->struct_size));
    }
    ClientOptions options;
    options.socket_path = c_abi::name_of(known.socket_path);
    options.software = c_abi::name_of(known.software);
    if (known.wait_ms >= 0) options.wait = std::chrono::milliseconds(std::min<int64_t>(known.wait_ms, 1000000000));
    *client = new ellm_client{Client(std::move(options))};
  });
}

void ellm_client_free(ellm_client* client) { delete client; }

int ellm_tokenize(ellm_client* client, const char* model, const char* text, size_t length, uint32_t flags,
                  ellm_reply** out) {
  return ask(client, out, [&](Client& c) {
    Tokenize request;
    request.model = c_abi::name_of(model), request.text = text_of(text, length);
    request.add_special = !(flags & ELLM_NO_SPECIAL), request.parse_special = !(flags & ELLM_PLAIN_TEXT);
    TokenizeReply tokens = c.tokenize(std::move(request));
    ellm_reply reply;
    reply.tokens = std::move(tokens.tokens);
    reply.pieces = std::move(tokens.pieces);
    return reply;
  });
}

int ellm_detokenize(ellm_client* client, const char* model, const uint32_t* tokens, size_t count, int special,
                    ellm_reply** out) {
  return ask(client, out, [&](Client& c) {
    require(tokens != nullptr || count == 0, "the tokens are NULL");
    Detokenize request;
    request.model = c_abi::name_of(model), request.tokens.assign(tokens, tokens + count);
    request.special = special != 0;
    ellm_reply reply;
    reply.text = c.detokenize(std::move(request));
    return reply;
  });
}

int ellm_render_template(ellm_client* client, const char* model, const char* variables, size_t length,
                         ellm_reply** out) {
  return ask(client, out, [&](Client& c) {
    ellm_reply reply;
    reply.text = c.render_template({0, c_abi::name_of(model), text_of(variables, length)});
    return reply;
  });
}

int ellm_score(ellm_client* client, const ellm_request* request, uint32_t top, ellm_reply** out) {
  return ask(client, out, [&](Client& c) {
    require(request != nullptr, "the request is NULL");
    Score text;
    text.model = request->model, text.namespace_ = request->name_space, text.text = request->prompt;
    text.tokens = request->tokens, text.use_tokens = request->use_tokens, text.top = top;
    text.priority = request->priority, text.deadline_ms = request->deadline_ms;
    Scores scores = c.score(std::move(text));
    ellm_reply reply;
    reply.tokens = std::move(scores.tokens);
    reply.log_probs = std::move(scores.log_probs);
    for (const auto& best : scores.top) reply.top.push_back(convert(best));
    return reply;
  });
}

int ellm_models_list(ellm_client* client, ellm_reply** out) { return models(client, ModelsAction::list, nullptr, out); }
int ellm_models_load(ellm_client* client, const char* name, ellm_reply** out) {
  return models(client, ModelsAction::load, name, out);
}
int ellm_models_unload(ellm_client* client, const char* name, ellm_reply** out) {
  return models(client, ModelsAction::unload, name, out);
}

int ellm_models_add(ellm_client* client, const char* name, const char* const* paths, size_t count, int adding,
                    ellm_reply** out) {
  return ask(client, out, [&](Client& c) {
    require(name != nullptr, "the model's name is NULL");
    require(paths != nullptr || count == 0, "the paths are NULL");
    require(adding >= ELLM_ADD_LOAD && adding <= ELLM_ADD_REPLACE, "no such way of adding a model");
    std::vector<std::string> files;
    for (size_t i = 0; i < count; i++) {
      require(paths[i] != nullptr, "a path is NULL");
      files.emplace_back(paths[i]);
    }
    ellm_reply reply;
    reply.models.push_back(c.add_model(name, files, static_cast<Adding>(adding - ELLM_ADD_LOAD)));
    return reply;
  });
}

int ellm_models_remove(ellm_client* client, const char* name) {
  return guarded([&] {
    require(client != nullptr, "the client is NULL");
    require(name != nullptr, "the model's name is NULL");
    client->client.remove_model(name);
  });
}

int ellm_status(ellm_client* client, ellm_reply** out) {
  return ask(client, out, [&](Client& c) {
    ellm_reply reply;
    reply.status = c.status();
    reply.models = reply.status->models;
    return reply;
  });
}
