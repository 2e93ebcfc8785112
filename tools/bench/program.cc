#include "tools/bench/program.h"

#include <fcntl.h>
#include <poll.h>
#include <sched.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <stdexcept>

namespace ellm::bench {
namespace {

cpu_set_t all_cpus;
bool remembered = false;

class Pipe {
 public:
  Pipe() {
    if (::pipe2(ends_, O_CLOEXEC) != 0) throw std::runtime_error(std::string("pipe: ") + std::strerror(errno));
  }
  ~Pipe() { close_read(), close_write(); }
  int read_end() const { return ends_[0]; }
  int write_end() const { return ends_[1]; }
  void close_read() { shut(ends_[0]); }
  void close_write() { shut(ends_[1]); }

 private:
  static void shut(int& fd) {
    if (fd >= 0) ::close(fd);
    fd = -1;
  }
  int ends_[2] = {-1, -1};
};

/// Appends what there is; false at the end.
bool drain(int fd, std::string& to) {
  char block[4096];
  const ssize_t n = ::read(fd, block, sizeof block);
  if (n < 0) return errno == EINTR;
  to.append(block, static_cast<size_t>(n));
  return n > 0;
}

}  // namespace

void remember_affinity() { remembered = ::sched_getaffinity(0, sizeof all_cpus, &all_cpus) == 0; }

std::string run_program(const std::vector<std::string>& command) {
  std::vector<char*> arguments;
  for (const std::string& a : command) arguments.push_back(const_cast<char*>(a.c_str()));
  arguments.push_back(nullptr);
  Pipe out, errors;
  const pid_t child = ::fork();
  if (child < 0) throw std::runtime_error(std::string("fork: ") + std::strerror(errno));
  if (child == 0) {
    if (remembered) ::sched_setaffinity(0, sizeof all_cpus, &all_cpus);
    ::dup2(out.write_end(), STDOUT_FILENO);
    ::dup2(errors.write_end(), STDERR_FILENO);
    ::execv(arguments[0], arguments.data());
    ::_exit(127);
  }
  out.close_write(), errors.close_write();
  std::string text, complaint;
  pollfd fds[2] = {{out.read_end(), POLLIN, 0}, {errors.read_end(), POLLIN, 0}};
  while (fds[0].fd >= 0 || fds[1].fd >= 0) {
    if (::poll(fds, 2, -1) < 0 && errno != EINTR) break;
    if (fds[0].revents != 0 && !drain(fds[0].fd, text)) fds[0].fd = -1;
    if (fds[1].revents != 0 && !drain(fds[1].fd, complaint)) fds[1].fd = -1;
  }
  int status = 0;
  while (::waitpid(child, &status, 0) < 0 && errno == EINTR) {
  }
  if (WIFEXITED(status) && WEXITSTATUS(status) == 0) return text;
  if (complaint.size() > 400) complaint = "…" + complaint.substr(complaint.size() - 400);
  std::string line;
  for (const std::string& a : command) line += (line.empty() ? "" : " ") + a;
  throw std::runtime_error(line + (WIFEXITED(status) && WEXITSTATUS(status) == 127 ? " cannot be started" : " failed") +
                           (complaint.empty() ? "" : ": " + complaint));
}

}  // namespace ellm::bench
