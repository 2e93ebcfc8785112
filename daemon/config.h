// The daemon's configuration, declared once: Config::visit lists every key with its member, what it may be and its
// documentation; the TOML reader, the command line, --print-config and the checks are visitors. Read once at the start.
#pragma once
#include <algorithm>
#include <cstdint>
#include <map>
#include <stdexcept>
#include <string>
#include <string_view>
#include <vector>

namespace ellm::daemon {

/// A wrong configuration in one line: "FILE, line N: key: what is wrong".
class ConfigError : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

/// A number of bytes; in the file an integer or text such as "512M", "8 GiB".
struct Bytes {
  uint64_t value = 0;
  bool operator==(const Bytes&) const = default;
};

/// What a key may be, beyond its type.
struct Rule {
  uint64_t least = 0, most = UINT64_MAX;  // numbers and bytes
  const char* one_of = nullptr;           // "f16 | int8"
  bool (*accepts)(const std::string& text) = nullptr;
  const char* expected = nullptr;  // in words, for the error of `accepts`
};

bool is_memory_policy(const std::string& text);
bool is_kv_types(const std::string& text);
bool is_disk_budget(const std::string& text);  // auto | off | bytes
bool is_user_weight(const std::string& text);  // user_weights.h

struct Config {
  std::string socket;
  std::string models_dir;
  std::vector<std::string> models;
  uint32_t threads = 0;
  std::string kernels = "auto";
  uint32_t context = 0;
  std::string admin_group;
  uint32_t drain_seconds = 30;
  struct Kv {
    std::string type = "int8";
    Bytes memory;
    std::string keep = "auto";
    uint32_t pinned_percent = 50, share_minutes = 60;
  } kv;
  struct Metrics {
    std::string socket;
  } metrics;
  struct Cache {
    std::string disk = "auto";
  } cache;
  struct Memory {
    std::string lock = "try", policy = "local", keep = "auto", core_dumps = "off";
  } memory;
  struct Limits {
    Bytes frame{64u << 20}, bytes_per_user{256u << 20}, unread{16u << 20};
    uint32_t unread_seconds = 10;
    uint32_t connections = 1024, connections_per_user = 256;
    uint32_t requests_per_connection = 128, requests_per_user = 512, descriptors_per_user = 256;
    uint32_t samples = 64, running = 64, queued = 1024;
    uint64_t queued_tokens = 16u << 20;
    uint32_t running_per_user = 0, queued_per_user = 0;
    uint32_t step_tokens = 512, token_ms = 150;

    /// Of one request: each counts as a request of its user.
    uint32_t most_samples() const { return std::min(samples, requests_per_user); }
  } limits;
  struct Shares {
    std::vector<std::string> weights;
    uint32_t batch_percent = 6;
  } shares;
  std::map<std::string, std::string> namespaces;

  /// v(key, member, rule, documentation); keys of a section stand together, those without one come first.
  template <class Self, class Visitor>
  static void visit(Self& self, Visitor&& v) {
    visit_service(self, v);
    visit_cache(self, v);
    visit_memory(self, v);
    visit_limits(self, v);
    visit_shares(self, v);
  }

 private:
  template <class Self, class Visitor>
  static void visit_service(Self& self, Visitor& v) {
    v("socket", self.socket, Rule{},
      "Where clients connect. Empty: $ELLM_SOCKET, else $XDG_RUNTIME_DIR/ellm/ellmd.sock, else /run/ellm/ellmd.sock.\n"
      "A socket that systemd passes in goes before all of these.");
    v("models_dir", self.models_dir, Rule{},
      "Where models are found by name. Empty: /var/lib/ellm/models and $XDG_DATA_HOME/ellm/models.");
    v("models", self.models, Rule{},
      "Models (names or paths of GGUF files) to load at the start; the first is the default one. With none, a request\n"
      "that names a model in the models directory loads it.");
    v("threads", self.threads, Rule{0, 4096},
      "Compute threads. 0: one per physical core that affinity mask and CPU quota allow.");
    v("kernels", self.kernels, Rule{.one_of = "auto | scalar | avx2 | avx512 | amx"},
      "Instruction set. auto: the best that this CPU has.");
    v("context", self.context, Rule{0, 1u << 30},
      "Most tokens of a request, prompt and answer together. 0: what the model was trained for, if the KV memory holds "
      "it.");
    v("admin_group", self.admin_group, Rule{},
      "Members of this group may load and unload models and see everyone's requests, as root and the daemon's own user "
      "may.");
    v("drain_seconds", self.drain_seconds, Rule{0, 86400},
      "How long SIGTERM waits for running requests before it cancels them.");
  }

  template <class Self, class Visitor>
  static void visit_cache(Self& self, Visitor& v) {
    v("kv.type", self.kv.type,
      Rule{.accepts = is_kv_types, .expected = "f16, int8, int4 or f32, or two of them as K:V"},
      "How keys and values are stored: f16, int8, int4, or two of them as K:V (`ellm eval kv MODEL` shows what each costs;\n"
      "f32: to measure).");
    v("kv.memory", self.kv.memory, Rule{},
      "Memory for each model's keys and values, such as \"8G\". 0: a quarter of what is available after the weights,\n"
      "room for `running` full contexts at most, one at least if it fits.");
    v("kv.keep", self.kv.keep, Rule{.one_of = "auto | off"},
      "Whether cached prefixes outlive the daemon. auto: under systemd in its file-descriptor store, over restarts and\n"
      "crashes; without it in /dev/shm, until `ellm cache drop`. off: they end with it.");
    v("kv.pinned_percent", self.kv.pinned_percent, Rule{0, 100},
      "How much of a model's cache pinned prefixes may take (one full context always stays free), and how much of one\n"
      "user's share of it he may pin.");
    v("kv.share_minutes", self.kv.share_minutes, Rule{0, 1u << 20},
      "Cached prefixes go by shares: who has more than his gives up first. Somebody's share is kept for so long after his\n"
      "last request; then others may have it all.");
    v("metrics.socket", self.metrics.socket, Rule{},
      "Where Prometheus' metrics are served, by HTTP on a Unix socket. Empty: nowhere, unless systemd passes in a socket\n"
      "named metrics (ellmd-metrics.socket), which may be a TCP one.");
    v("cache.disk", self.cache.disk, Rule{.accepts = is_disk_budget, .expected = "auto, off or a size such as \"20G\""},
      "Disk space for cached prefixes, under the state directory: they are there again after a stop or a reboot. A size,\n"
      "off, or auto: a tenth of the free space, 64G at most; off where kv.keep is. The files hold prompts and answers,\n"
      "readable by the daemon's user alone.");
  }

  template <class Self, class Visitor>
  static void visit_memory(Self& self, Visitor& v) {
    v("memory.lock", self.memory.lock, Rule{.one_of = "try | require | off"},
      "Lock weights in memory. try: warn where the limit forbids it; require: refuse to load then.");
    v("memory.core_dumps", self.memory.core_dumps, Rule{.one_of = "off | on"},
      "off: a crash leaves no core dump, which would hold prompts and answers. on: it does, without the KV pages.");
    v("memory.policy", self.memory.policy,
      Rule{.accepts = is_memory_policy, .expected = "local, interleave or bind:N with a NUMA node N of this machine"},
      "NUMA placement of the weights: local, interleave or bind:N.");
    v("memory.keep", self.memory.keep, Rule{.one_of = "auto | always | off"},
      "Whether loaded weights outlive the daemon, for a restart to find. auto: under systemd in its file-descriptor store,\n"
      "over restarts and crashes; without it in /dev/shm, until `ellm cache drop --weights`; not where shared memory has no\n"
      "huge pages (decoding would be slower). always: even then. off: they end with it.");
  }

  template <class Self, class Visitor>
  static void visit_limits(Self& self, Visitor& v) {
    v("limits.frame", self.limits.frame, Rule{1024, 64u << 20}, "Largest message.");
    v("limits.bytes_per_user", self.limits.bytes_per_user, Rule{1024},
      "Bytes of all messages of one user that are being worked on.");
    v("limits.unread", self.limits.unread, Rule{1024},
      "Replies that may wait for a client that does not read. With more, and none of it taken for `unread_seconds`, it\n"
      "is disconnected; what waits counts in `bytes_per_user`, too.");
    v("limits.unread_seconds", self.limits.unread_seconds, Rule{1, 86400}, "See `unread`.");
    v("limits.connections", self.limits.connections, Rule{1, 1u << 20}, "Connections.");
    v("limits.connections_per_user", self.limits.connections_per_user, Rule{1, 1u << 20}, "Connections of one user.");
    v("limits.requests_per_connection", self.limits.requests_per_connection, Rule{1, 1u << 20},
      "Unfinished requests of one connection.");
    v("limits.requests_per_user", self.limits.requests_per_user, Rule{1, 1u << 20}, "Unfinished requests of one user.");
    v("limits.descriptors_per_user", self.limits.descriptors_per_user, Rule{1, 1u << 16},
      "Open files that one administrator may have handed over.");
    v("limits.samples", self.limits.samples, Rule{1, 4096},
      "Samples of one request (`ellm run -n`); each counts in `requests_per_user`. Where one may wait for its turn, all\n"
      "may.");
    v("limits.running", self.limits.running, Rule{1, 4096}, "Requests of one model that run together.");
    v("limits.queued", self.limits.queued, Rule{1, 1u << 20}, "Requests that wait for their turn.");
    v("limits.running_per_user", self.limits.running_per_user, Rule{0, 4096},
      "Requests of one user that run together. 0: as many as there is room for; a user who has more than his share\n"
      "gives back what others want (see [shares]).");
    v("limits.queued_per_user", self.limits.queued_per_user, Rule{0, 1u << 20},
      "Requests of one user that wait for their turn. 0: as many as there is room for.");
    v("limits.queued_tokens", self.limits.queued_tokens, Rule{1}, "Tokens of all prompts that wait.");
    v("limits.step_tokens", self.limits.step_tokens, Rule{16, 65536}, "Tokens computed in one step.");
    v("limits.token_ms", self.limits.token_ms, Rule{0, 600000},
      "Most milliseconds between the tokens of an interactive answer: prompts of others are cut so that a step takes no\n"
      "longer (or three times a step without prompts, where that is longer), and four times as long where only batch\n"
      "requests are being answered, or none. 0: prompts are not cut for that.");
  }

  template <class Self, class Visitor>
  static void visit_shares(Self& self, Visitor& v) {
    v("shares.weights", self.shares.weights,
      Rule{.accepts = is_user_weight, .expected = "USER:WEIGHT with a weight from 1 to 1000"},
      "Where several users want more than there is, each gets tokens, places and KV pages by weight: [\"alice:3\"].\n"
      "Users that are not listed have weight 1; what one does not want the others may take, and give back.");
    v("shares.batch_percent", self.shares.batch_percent, Rule{0, 100},
      "Of places and prompt tokens, what batch requests keep where interactive ones, which go first, want everything.");
    v("namespaces", self.namespaces, Rule{},
      "Prefixes that several users share: docs = \"group:staff\" lets the members of that group (or \"everybody\") use\n"
      "`--namespace docs`. What such a request computes is found by all who may use it, and by nobody else. Without one\n"
      "each user's prefixes are his own.");
  }
};

/// Overrides `config` with a TOML file. Throws ConfigError: unreadable, syntax, unknown key (with a suggestion), type,
/// rule.
void read_config(const std::string& path, Config& config);
/// The same from memory; `name` stands in errors.
void parse_config(std::string_view toml, const std::string& name, Config& config);
/// Sets one key from text, as the command line does; `name` ("--threads") stands in errors.
void set_option(Config& config, std::string_view key, const std::string& text, const std::string& name);
/// The whole configuration as a commented TOML file.
std::string print_config(const Config& config);

/// The file that is read where --config is absent: /etc/ellm/ellmd.toml, else $XDG_CONFIG_HOME/ellm/ellmd.toml; empty
/// if neither exists.
std::string find_config_file();

}  // namespace ellm::daemon
