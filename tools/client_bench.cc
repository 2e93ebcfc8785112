// client-bench: what the protocol and the program's start cost, beside the least that they could: a status round trip
// against a bare ping-pong of two processes over a Unix socket, and a whole `ellm tokenize` against /bin/true. Needs a
// daemon with a model.
#include <fcntl.h>
#include <spawn.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <chrono>
#include <cstdio>

#include "client/client.h"
#include "client/codec.h"
#include "client/places.h"

namespace {

using Clock = std::chrono::steady_clock;

template <class F>
double microseconds(F&& work) {
  auto begin = Clock::now();
  work();
  return std::chrono::duration<double, std::micro>(Clock::now() - begin).count();
}

double median(std::vector<double>& values) {
  auto middle = values.begin() + static_cast<ptrdiff_t>(values.size() / 2);
  std::nth_element(values.begin(), middle, values.end());
  return *middle;
}

bool transfer_whole(ssize_t (*call)(int, void*, size_t), int fd, std::string& buffer) {
  for (size_t done = 0; done < buffer.size();) {
    ssize_t n = call(fd, buffer.data() + done, buffer.size() - done);
    if (n <= 0) return false;
    done += static_cast<size_t>(n);
  }
  return true;
}
ssize_t write_some(int fd, void* data, size_t size) { return write(fd, data, size); }

/// A child process that answers so many bytes with so many others, and nothing else.
class BarePeer {
 public:
  BarePeer(size_t request_bytes, size_t reply_bytes) : request_(request_bytes, 'q'), reply_(reply_bytes, 'r') {
    int ends[2];
    if (socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends) < 0) throw std::runtime_error("socketpair failed");
    child_ = fork();
    if (child_ == 0) {
      close(ends[0]);
      while (transfer_whole(read, ends[1], request_) && transfer_whole(write_some, ends[1], reply_)) continue;
      _exit(0);
    }
    close(ends[1]);
    fd_ = ends[0];
  }
  ~BarePeer() {
    close(fd_);
    waitpid(child_, nullptr, 0);
  }
  void round_trip() { transfer_whole(write_some, fd_, request_) && transfer_whole(read, fd_, reply_); }

 private:
  std::string request_, reply_;
  pid_t child_;
  int fd_;
};

void run_process(std::vector<std::string> words) {
  std::vector<char*> argv;
  for (std::string& word : words) argv.push_back(word.data());
  argv.push_back(nullptr);
  posix_spawn_file_actions_t actions;
  posix_spawn_file_actions_init(&actions);
  posix_spawn_file_actions_addopen(&actions, STDOUT_FILENO, "/dev/null", O_WRONLY, 0);
  pid_t pid = 0;
  int status = 1;
  if (posix_spawn(&pid, argv[0], &actions, nullptr, argv.data(), environ) == 0) waitpid(pid, &status, 0);
  posix_spawn_file_actions_destroy(&actions);
  if (status != 0) throw std::runtime_error(words[0] + " failed");
}

/// Runs both in turns, so that neither has the quieter machine; prints medians and their ratio.
template <class A, class B>
bool compare(int batches, int rounds, const char* bare_name, A&& bare, const char* name, B&& work, double bound) {
  std::vector<double> bare_times, times;
  for (int batch = 0; batch < batches; batch++) {
    for (int i = 0; i < rounds; i++) bare_times.push_back(microseconds(bare));
    for (int i = 0; i < rounds; i++) times.push_back(microseconds(work));
  }
  double least = median(bare_times), cost = median(times);
  printf("%-34s %9.1f µs\n%-34s %9.1f µs   %.2f x (bound %.0f)\n", bare_name, least, name, cost, cost / least, bound);
  return cost <= bound * least;
}

}  // namespace

int main(int argc, char** argv) {
  CLI::App app{"Measures the protocol's round trip and the program's start beside the least that they could cost."};
  std::string socket = ellm::client::default_socket_path(), program = "ellm";
  if (std::string self = argv[0]; self.find('/') != std::string::npos)
    program = self.substr(0, self.rfind('/') + 1) + "ellm";
  int batches = 20;
  app.add_option("--socket", socket, "The daemon's socket")->capture_default_str();
  app.add_option("--ellm", program, "The program")->capture_default_str();
  app.add_option("--batches", batches, "Repetitions")->capture_default_str();
  CLI11_PARSE(app, argc, argv);
  try {
    ellm::client::Client client(socket);
    size_t request_bytes = ellm::client::encode_frame(ellm::client::Status{1}).size();
    size_t reply_bytes = ellm::client::encode_frame(client.status()).size();
    BarePeer peer(request_bytes, reply_bytes);
    bool good = compare(
        batches, 250, "bare ping-pong of two processes", [&] { peer.round_trip(); }, "status round trip",
        [&] { client.status(); }, 2);
    good &= compare(
        batches, 10, "/bin/true", [] { run_process({"/bin/true"}); }, "ellm tokenize",
        [&] { run_process({program, "--socket", socket, "tokenize", "Why is the sky blue?"}); }, 10);
    return good ? 0 : 1;
  } catch (const std::exception& error) {
    fprintf(stderr, "client-bench: %s\n", error.what());
    return 69;
  }
}
