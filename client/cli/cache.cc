// ellm cache: what the daemon keeps of the prefixes that it has computed: list, totals, pin, flush, compute in advance.
#include <algorithm>

#include "client/cli/cache_drop.h"
#include "client/cli/command_line.h"
#include "client/cli/failure.h"
#include "client/cli/interrupt.h"
#include "client/cli/json.h"
#include "client/cli/output.h"
#include "client/utf8.h"

namespace ellm::cli {
namespace {

using client::CacheAction;
using client::CachedPrefix;

constexpr const char* kExamples =
    "  ellm cache ls                              your prefixes, those used last first\n"
    "  ellm cache warm handbook.txt --system --pin     the system message of the chats to come; stays\n"
    "  ellm cache pin 6f1c02d9                    what `ls` calls it, or its first 8 digits\n"
    "  ellm cache stat --json | jq .owners\n"
    "  ellm cache flush                           your own, but for what is pinned\n"
    "  ellm cache drop --weights                  what daemons of yours that have ended left in memory";

struct Options {
  std::string action, uid;
  std::vector<std::string> arguments;
  bool all = false, pinned = false, pin = false, chat = false, system = false, weights = false;
};

/// A text's beginning or end on one line, `most` characters of it.
std::string excerpt(const std::string& text, size_t most, bool end) {
  std::string line;
  for (const char c : client::to_utf8(text)) line += static_cast<unsigned char>(c) < ' ' || c == 0x7f ? ' ' : c;
  const auto begins = [&](size_t i) { return (static_cast<unsigned char>(line[i]) & 0xc0) != 0x80; };
  size_t characters = 0;
  for (size_t i = 0; i < line.size(); ++i) characters += begins(i);
  if (characters <= most) return line;
  size_t skip = end ? characters - most : most, at = 0;
  for (; at < line.size(); ++at) {
    if (begins(at) && skip-- == 0) break;
  }
  return end ? "…" + line.substr(at) : line.substr(0, at) + "…";
}

std::string prefixes_table(const std::vector<CachedPrefix>& prefixes) {
  std::vector<std::vector<std::string>> rows = {{"PREFIX", ">TOKENS", ">SIZE", ">USED", "PINNED", "MODEL", "TEXT"}};
  for (const CachedPrefix& p : prefixes)
    rows.push_back({p.prefix, std::to_string(p.tokens), human_bytes(static_cast<double>(p.bytes)),
                    p.in_use ? "now" : human_seconds(p.age_s), p.pinned ? "yes" : "-", p.model,
                    excerpt(p.head, 32, false) + (p.tail.empty() ? "" : " " + excerpt(p.tail, 24, true))});
  return table(rows);
}

int list(const CommandLine& line) {
  client::Client client = line.connect();
  const auto prefixes = client.cached_prefixes(line.model, line.name_space);
  if (line.json) {
    for (const CachedPrefix& prefix : prefixes) write_out(serialize(to_json(prefix)) + "\n");
  } else {
    write_text(prefixes.empty() ? "nothing of yours is cached\n" : prefixes_table(prefixes));
  }
  return kOk;
}

std::string stat_tables(const client::CacheReply& reply) {
  const auto tokens = [&](const std::string& model, uint64_t pages) {
    const auto found = std::ranges::find(reply.models, model, &client::CacheModel::model);
    return std::to_string(pages * (found == reply.models.end() ? 0 : found->page_tokens));
  };
  std::vector<std::vector<std::string>> models = {
      {"MODEL", ">KV TOKENS", ">FREE", ">CACHED", ">PINNED", ">MAY PIN", ">DAMAGED"}};
  for (const client::CacheModel& m : reply.models)
    models.push_back({m.model, tokens(m.model, m.pages), tokens(m.model, m.free_pages), tokens(m.model, m.cached_pages),
                      tokens(m.model, m.pinned_pages), tokens(m.model, m.most_pinned_pages),
                      tokens(m.model, m.damaged_pages)});
  std::vector<std::vector<std::string>> owners = {
      {"MODEL", "OWNER", ">HAS", ">IN USE", ">PINNED", ">SHARE", ">FOUND", ">COMPUTED", ">GIVEN UP"}};
  for (const client::CacheOwner& o : reply.owners)
    owners.push_back({o.model, o.owner, tokens(o.model, o.pages), tokens(o.model, o.used_pages),
                      tokens(o.model, o.pinned_pages), tokens(o.model, o.share_pages), std::to_string(o.cached_tokens),
                      std::to_string(o.computed_tokens), tokens(o.model, o.evicted_pages)});
  return reply.models.empty() ? "no model is loaded\n" : table(models) + "\n" + table(owners);
}

int stat(const CommandLine& line, const client::Cache& request) {
  client::Client client = line.connect();
  const client::CacheReply reply = client.cache(request);
  if (line.json)
    write_out(serialize(boost::json::object{{"models", to_json(reply.models)}, {"owners", to_json(reply.owners)}}) +
              "\n");
  else write_out(stat_tables(reply) + (reply.models.empty() ? "" : "(tokens)\n"));
  return kOk;
}

int pin(const CommandLine& line, client::Cache request, const Options& options) {
  if (options.arguments.empty()) line.usage_error("which prefix? `ellm cache ls` names them");
  client::Client client = line.connect();
  for (const std::string& prefix : options.arguments) {
    request.prefix = prefix;
    const client::CacheReply reply = client.cache(request);
    if (line.json && !reply.prefixes.empty()) write_out(serialize(to_json(reply.prefixes[0])) + "\n");
    if (!line.json) write_note((request.action == CacheAction::pin ? "pinned " : "unpinned ") + prefix);
  }
  return kOk;
}

int flush(const CommandLine& line, const client::Cache& request) {
  client::Client client = line.connect();
  const client::CacheReply reply = client.cache(request);
  if (line.json) write_out(serialize(boost::json::object{{"pages", reply.pages}, {"bytes", reply.bytes}}) + "\n");
  else write_out(human_bytes(static_cast<double>(reply.bytes)) + " of cached prefixes given up\n");
  return kOk;
}

int warm(const CommandLine& line, client::Cache request, const Options& options) {
  if (options.arguments.empty()) line.usage_error("which file? - is stdin");
  InterruptGuard guard;
  client::Client client = line.connect(interrupted);
  for (const std::string& file : options.arguments) {
    std::string text = file == "-" ? read_stdin() : read_file(file);
    if (text.empty()) throw Failure(kNoInput, file + " is empty");
    request.text.clear();
    request.messages.clear();
    if (!options.chat && !options.system) {
      request.text = std::move(text);
    } else {
      if (text.ends_with('\n')) text.pop_back();  // as in `ellm run`
      request.messages = {{options.system ? "system" : "user", std::move(text), {}, ""}};
      request.variables = "{\"add_generation_prompt\": false}";
    }
    const client::Usage usage = client.cache(request).usage;
    if (line.json) {
      write_out(serialize(boost::json::object{{"file", file}, {"pinned", request.pinned}, {"usage", to_json(usage)}}) +
                "\n");
    } else {
      write_note(format("%s: %u tokens, %u of them were cached already%s", file.c_str(), usage.prompt_tokens,
                        usage.cached_tokens, request.pinned ? "; pinned" : ""));
    }
  }
  return kOk;
}

int drop(const CommandLine& line, const Options& options) {
  const Dropped dropped = drop_segments(options.weights);
  if (line.json) {
    write_out(format("{\"dropped\": %ju, \"bytes\": %ju, \"in_use\": %ju}\n", uintmax_t{dropped.segments},
                     uintmax_t{dropped.bytes}, uintmax_t{dropped.in_use}));
    return kOk;
  }
  write_out(format("%ju segments dropped, %s freed\n", uintmax_t{dropped.segments},
                   human_bytes(static_cast<double>(dropped.bytes)).c_str()));
  if (dropped.in_use != 0)
    write_note(format("%ju in use by a running daemon: unload its models (ellm unload) or stop it first",
                      uintmax_t{dropped.in_use}));
  return kOk;
}

/// Options that another action is meant for would be left unheard.
void check_options(const CommandLine& line, const Options& options) {
  const std::string& action = options.action;
  const auto only_for = [&](bool given, const char* option, std::initializer_list<const char*> actions) {
    if (given && std::ranges::find(actions, action) == actions.end())
      line.usage_error(std::string(option) + " has no meaning for `" + action + "`");
  };
  only_for(options.all, "--all", {"stat", "flush"});
  only_for(!options.uid.empty(), "--uid", {"stat", "flush"});
  only_for(options.pinned, "--pinned", {"flush"});
  only_for(options.pin, "--pin", {"warm"});
  only_for(options.chat, "--chat", {"warm"});
  only_for(options.system, "--system", {"warm"});
  only_for(options.weights, "--weights", {"drop"});
  only_for(!options.arguments.empty(), "an argument", {"pin", "unpin", "warm"});
  if (action == "drop" && (!line.model.empty() || !line.name_space.empty()))
    line.usage_error("`drop` frees what no daemon has; `flush` is for a running one");
}

}  // namespace

int cache_command(Invocation& invocation) {
  CommandLine line(
      invocation,
      "What the daemon keeps of the prefixes that it has computed for you: `ls` lists them, `stat` sums up, `pin` "
      "keeps one from being given up for others and `unpin` no longer, `flush` gives all up, `warm` computes the "
      "text of a file before a request needs it. `drop` frees the memory in which daemons of yours that have ended "
      "keep prefixes for the next one. (The system's daemon keeps them in systemd: stopping the service frees them.)",
      kExamples);
  Options options;
  line.app.add_option("ACTION", options.action, "ls, stat, pin, unpin, flush, warm or drop")
      ->required()
      ->check(CLI::IsMember({"ls", "stat", "pin", "unpin", "flush", "warm", "drop"}));
  line.app.add_option("PREFIX|FILE", options.arguments, "pin, unpin: prefixes; warm: files, - for stdin");
  line.add_model()->description("The model; default: all that are loaded (warm: the daemon's default model)");
  line.add_namespace();
  auto* chat = line.app.add_flag("--chat", options.chat, "warm: the file is a user's message");
  line.app.add_flag("--system", options.system, "warm: the file is the system message")->excludes(chat);
  line.app.add_flag("--pin", options.pin, "warm: and pin it");
  line.app.add_flag("--pinned", options.pinned, "flush: what is pinned, too");
  auto* all = line.app.add_flag("--all", options.all, "stat, flush: everybody's, for administrators");
  line.app.add_option("--uid", options.uid, "stat, flush: this user's, for administrators")
      ->type_name("UID")
      ->excludes(all);
  line.app.add_flag("--weights", options.weights,
                    "drop: also loaded models' weights, with which a daemon starts at once");
  line.add_json();
  line.parse();
  check_options(line, options);
  if (options.action == "drop") return drop(line, options);
  if (options.action == "ls") return list(line);
  client::Cache request;
  request.model = line.model;
  request.namespace_ = line.name_space;
  request.whose = options.all ? "all" : options.uid;
  request.pinned = options.pinned || options.pin;
  const auto with = [&](CacheAction action) -> client::Cache& {
    request.action = action;
    return request;
  };
  if (options.action == "stat") return stat(line, with(CacheAction::stat));
  if (options.action == "pin") return pin(line, with(CacheAction::pin), options);
  if (options.action == "unpin") return pin(line, with(CacheAction::unpin), options);
  if (options.action == "flush") return flush(line, with(CacheAction::flush));
  return warm(line, with(CacheAction::warm), options);
}

}  // namespace ellm::cli
