// Larger subcommands are programs of their own beside `ellm`, so that `ellm` itself starts fast.
#include <unistd.h>

#include <cerrno>
#include <climits>
#include <cstdlib>
#include <cstring>

#include "client/cli/commands.h"
#include "client/cli/failure.h"

namespace ellm::cli {

std::string external_program(const std::string& name) {
  if (name.find('/') != std::string::npos) return "";
  char self[PATH_MAX];
  ssize_t length = readlink("/proc/self/exe", self, sizeof self);
  if (length <= 0 || length == sizeof self) return "";
  std::string program(self, static_cast<size_t>(length));
  program.resize(program.rfind('/') + 1);
  program += "ellm-" + name;
  return access(program.c_str(), X_OK) == 0 ? program : "";
}

void execute_external(const std::string& name, const Invocation& invocation) {
  std::string program = external_program(name);
  if (program.empty()) return;
  if (!invocation.socket.empty()) setenv("ELLM_SOCKET", invocation.socket.c_str(), 1);
  std::vector<char*> argv = {program.data()};
  for (const std::string& argument : invocation.arguments) argv.push_back(const_cast<char*>(argument.c_str()));
  argv.push_back(nullptr);
  execv(program.c_str(), argv.data());
  throw Failure(kUnavailable, "cannot start " + program + ": " + strerror(errno));
}

}  // namespace ellm::cli
