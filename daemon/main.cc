// ellmd: builds the parts in the order in which they need each other, runs the I/O loop, takes them down in reverse.
#include <sys/prctl.h>
#include <sysexits.h>

#include <chrono>
#include <csignal>
#include <iostream>
#include <optional>
#include <system_error>

#include "daemon/lifecycle.h"
#include "daemon/listener.h"
#include "daemon/log.h"
#include "daemon/metrics_server.h"
#include "daemon/model/forward.h"
#include "daemon/notify.h"
#include "daemon/options.h"
#include "daemon/runtime/cpu_features.h"
#include "daemon/runtime/topology.h"
#include "daemon/server.h"
#include "daemon/services.h"
#include "daemon/user_weights.h"

namespace ellm::daemon {
namespace {

constexpr unsigned kPrepareThreads = 2;
constexpr uint32_t kLoadSeconds = 600;  // that a model may take at the start before systemd loses patience

serve::EngineLimits engine_limits(const Config& config) {
  const Config::Limits& limits = config.limits;
  serve::EngineLimits engine;
  engine.max_running = limits.running;
  engine.max_queued = limits.queued;
  engine.max_queued_tokens = limits.queued_tokens;
  engine.step_tokens = limits.step_tokens;
  engine.token_ms = limits.token_ms;
  engine.running_per_user = limits.running_per_user;
  engine.queued_per_user = limits.queued_per_user;
  engine.batch_percent = config.shares.batch_percent;
  engine.weights = user_weights(config.shares.weights);
  return engine;
}

const kernels::KernelSet& kernels_of(const Config& config) {
  try {
    return model::choose_kernels(config.kernels);
  } catch (const std::runtime_error& e) {
    throw ConfigError("kernels is '" + config.kernels + "': " + e.what());
  }
}

int serve(const Options& options) {
#if !defined(__SANITIZE_ADDRESS__)  // whose search for leaks looks into the process as a debugger does
  if (options.config.memory.core_dumps == "off") ::prctl(PR_SET_DUMPABLE, 0);  // prompts would be in it
#endif
  std::signal(SIGXFSZ, SIG_IGN);  // a limit of files' sizes is a full disk
  std::signal(SIGPIPE, SIG_IGN);  // a log that nobody reads must not end the daemon
  const Config& config = options.config;
  const int64_t admin_gid = group_number(config.admin_group);
  const kernels::KernelSet& kernels = kernels_of(config);
  const runtime::Topology topology = runtime::read_topology();
  const uint32_t threads = config.threads != 0 ? config.threads : static_cast<uint32_t>(topology.default_threads());
  log(Priority::notice, "ellmd " ELLM_VERSION ", kernels " + std::string(kernels.name) + ", " +
                            std::to_string(threads) + " threads" +
                            (options.config_file.empty() ? "" : ", configuration " + options.config_file));

  PassedDescriptors passed = passed_descriptors();
  // First: before a long load for nothing.
  Listener listener = Listener::open(listen_path(config.socket), passed.sockets);
  const std::optional<Listener> metrics_listener = Listener::open_metrics(config.metrics.socket, passed.metrics);
  Loop loop;
  runtime::WorkerPool workers(topology, threads);
  Outbox outbox(loop);
  serve::Engine engine(kernels, workers, engine_limits(config), &std::chrono::steady_clock::now,
                       [&outbox] { return outbox.flush(); });
  PreparePool pool(kPrepareThreads);
  Registry registry(config, threads, engine, pool, loop, std::move(passed.stored));
  Accounts accounts;
  const Namespaces namespaces(config);
  Metrics metrics;
  StatsPage stats_page(stats_page_path(listener.path()));
  if (!stats_page.fault().empty()) log(Priority::warning, "no stats page: " + stats_page.fault());
  Services services{config,   loop,       outbox,  engine,     pool,         registry,
                    accounts, namespaces, metrics, stats_page, kernels.name, runtime::detect_cpu().model,
                    threads};
  for (const std::string& model : config.models) {
    notify_patience(kLoadSeconds);
    notify_status("loading " + model);
    registry.load_now(model);
  }
  std::optional<MetricsServer> metrics_server;
  if (metrics_listener) metrics_server.emplace(loop, metrics_listener->fd(), [&] { return metrics.text(services); });
  Server server(services, listener, admin_gid);
  Lifecycle lifecycle(services, server, listener);
  lifecycle.begin();
  loop.run();
  // Nobody listens to signals any more: one that comes while a load is waited for ends the daemon.
  std::signal(SIGINT, [](int) { std::_Exit(EX_OK); });
  std::signal(SIGTERM, [](int) { std::_Exit(EX_OK); });
  pool.stop();  // what it would post has nowhere to go
  log(Priority::notice, "ended");
  return EX_OK;
}

int start(int argc, char** argv) {
  const Options options = read_options(argc, argv);
  if (options.print_config) {
    std::cout << print_config(options.config);
    return EX_OK;
  }
  if (options.check_config) {
    group_number(options.config.admin_group);
    Namespaces(options.config);
    user_weights(options.config.shares.weights);
    kernels_of(options.config);
    std::cout << (options.config_file.empty() ? "defaults (no configuration file)" : options.config_file) << ": good\n";
    return EX_OK;
  }
  return serve(options);
}

int fail(int code, const std::string& what) {
  log(Priority::error, what);
  return code;
}

}  // namespace
}  // namespace ellm::daemon

int main(int argc, char** argv) {
  using namespace ellm::daemon;
  try {
    return start(argc, argv);
  } catch (const ConfigError& e) {
    return fail(EX_CONFIG, e.what());
  } catch (const NoSuchModel& e) {
    return fail(EX_NOINPUT, e.what());
  } catch (const ellm::format::FormatError& e) {
    return fail(EX_NOINPUT, e.what());
  } catch (const ellm::model::LoadError& e) {
    return fail(EX_OSERR, e.what());
  } catch (const ListenError& e) {
    return fail(EX_CANTCREAT, e.what());
  } catch (const std::system_error& e) {
    return fail(EX_OSERR, e.what());
  } catch (const std::exception& e) {
    return fail(EX_SOFTWARE, e.what());
  }
}
