// See model_requests.h.
#include "daemon/model_requests.h"

#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include "client/utf8.h"
#include "daemon/format/model_name.h"
#include "daemon/model_store.h"
#include "daemon/one_reply.h"

namespace ellm::daemon {
namespace {

using client::ErrorCode;

constexpr size_t kLongestName = 4096;

/// What is wrong with a model that is handed over, or empty.
std::string fault_of(const client::AddModel& r, const HandedOver& handed) {
  const size_t came = handed.descriptors.size(), announced = r.files.size();
  if (const std::string fault = format::model_name_fault(r.name); !fault.empty()) return fault;
  if (announced == 0 || announced > client::kMaxModelFiles) {
    return std::to_string(announced) + " files; allowed are 1 to " + std::to_string(client::kMaxModelFiles);
  }
  if (came < announced) {
    return std::to_string(announced) + " files are announced, " + std::to_string(came) +
           " descriptors came with the frame" +
           (handed.lost ? ": ellmd has too many open files (LimitNOFILE=, ulimit -n)" : "");
  }
  for (size_t i = 0; i < announced; ++i) {
    if (r.files[i].path.size() > kLongestName || !client::is_utf8(r.files[i].path))
      return "a path is longer than 4096 bytes or not UTF-8";
    const std::string fault = descriptor_fault(handed.descriptors[i].get(), r.files[i].bytes);
    if (!fault.empty()) return r.files[i].path + " " + fault;
  }
  return {};
}

}  // namespace

void answer(Conversation& conversation, client::Models&& request) {
  const uint32_t id = request.id;
  auto charges = conversation.admit(id);
  if (!charges) return;
  if (request.action != client::ModelsAction::list && !conversation.peer().admin) {
    return conversation.deny(id, "load, unload and remove models");
  }
  if (request.name.size() > kLongestName || !client::is_utf8(request.name)) {
    return conversation.error(id, ErrorCode::bad_request, "models: the name is longer than 4096 bytes or not UTF-8");
  }
  conversation.add(id, std::make_shared<OneReply>(conversation.weak_from_this(), id));
  const auto self = conversation.shared_from_this();
  Registry& registry = conversation.services().registry;
  const auto paid = std::make_shared<Charges>(std::move(*charges));
  const auto reply = [self, id, paid](std::vector<client::ModelInfo> infos) {
    self->finish(id, client::ModelsReply{id, std::move(infos), {}});
  };
  switch (request.action) {
    case client::ModelsAction::list:
      return registry.list([self, id, paid](std::vector<client::ModelInfo> infos) {
        self->finish(id, client::ModelsReply{id, std::move(infos), self->services().registry.unreadable()});
      });
    case client::ModelsAction::load:
      return registry.load(request.name, [self, id, reply](const Registry::Resolved& model) {
        if (const auto* failure = std::get_if<Failure>(&model)) return self->finish(id, to_error(id, *failure));
        auto infos = self->services().registry.loaded();
        const auto& name = std::get<std::shared_ptr<const LoadedModel>>(model)->name;
        std::erase_if(infos, [&](const client::ModelInfo& info) { return info.name != name; });
        reply(std::move(infos));
      });
    case client::ModelsAction::unload:
      return registry.unload(request.name, [self, id, reply](const std::optional<Failure>& failure) {
        if (failure) return self->finish(id, to_error(id, *failure));
        reply(self->services().registry.loaded());
      });
    case client::ModelsAction::remove:
      return registry.remove(request.name, [self, id, reply](const std::optional<Failure>& failure) {
        if (failure) return self->finish(id, to_error(id, *failure));
        reply({});
      });
  }
}

void answer(Conversation& conversation, client::AddModel&& request, HandedOver handed) {
  const uint32_t id = request.id;
  auto charges = conversation.admit(id);
  if (!charges) return;
  if (!conversation.peer().admin) return conversation.deny(id, "add models");
  if (const std::string fault = fault_of(request, handed); !fault.empty())
    return conversation.error(id, ErrorCode::bad_request, "add_model: " + fault);
  const auto job = std::make_shared<OneReply>(conversation.weak_from_this(), id);
  conversation.add(id, job);
  handed.descriptors.resize(request.files.size());  // what was not announced is closed
  auto files = std::make_shared<ModelSource>();
  for (size_t i = 0; i < request.files.size(); ++i) {
    files->files.push_back({std::move(request.files[i].path), handed.descriptors[i].get()});
  }
  files->held = std::move(handed);
  const auto self = conversation.shared_from_this();
  Registry& registry = conversation.services().registry;
  const auto paid = std::make_shared<Charges>(std::move(*charges));
  const auto reply = [self, id, paid](const std::variant<client::ModelInfo, Failure>& outcome) {
    if (const auto* failure = std::get_if<Failure>(&outcome)) return self->finish(id, to_error(id, *failure));
    self->finish(id, client::ModelsReply{id, {std::get<client::ModelInfo>(outcome)}, {}});
  };
  if (!request.install) return registry.load_files(request.name, std::move(files), reply);
  registry.install(request.name, std::move(files), request.replace, [job] { return job->cancelled(); }, reply);
}

}  // namespace ellm::daemon
