// ellm cache: what daemons keep of the prefixes that they have computed, and of the weights that they have repacked.
#include <dirent.h>
#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <memory>

#include "client/cli/command_line.h"
#include "client/cli/failure.h"
#include "client/cli/output.h"

namespace ellm::cli {
namespace {

constexpr const char* kFolder = "/dev/shm";

struct Dropped {
  uint64_t segments = 0, bytes = 0, in_use = 0;
};

/// A segment that a daemon has is locked.
void drop_segment(const std::string& path, Dropped& dropped) {
  const int fd = open(path.c_str(), O_RDWR | O_NOFOLLOW | O_CLOEXEC);
  if (fd < 0 && errno == ENOENT) return;
  if (fd < 0) throw Failure(kDenied, path + ": " + std::strerror(errno));
  struct stat status {};
  fstat(fd, &status);
  if (flock(fd, LOCK_EX | LOCK_NB) != 0) {
    ++dropped.in_use;
  } else if (unlink(path.c_str()) == 0) {
    ++dropped.segments;
    dropped.bytes += static_cast<uint64_t>(status.st_blocks) * 512;
  }
  close(fd);
}

Dropped drop(bool weights) {
  Dropped dropped;
  const std::unique_ptr<DIR, int (*)(DIR*)> folder(opendir(kFolder), closedir);
  if (!folder) return dropped;
  const std::string mine = std::to_string(geteuid()) + ".";
  while (const dirent* entry = readdir(folder.get())) {
    const std::string name = entry->d_name;
    if (name.starts_with("ellm-kv." + mine) || (weights && name.starts_with("ellm-weights." + mine)))
      drop_segment(std::string(kFolder) + "/" + name, dropped);
  }
  return dropped;
}

}  // namespace

int cache_command(Invocation& invocation) {
  CommandLine line(invocation,
                   "Frees the memory in which daemons of yours that have ended keep the prefixes that they computed, for the "
                   "next one to use, and with --weights that of the models' weights. (The system's daemon keeps them in systemd: "
                   "stopping the service frees them.)",
                   "  ellm cache drop --weights");
  std::string action;
  line.app.add_option("ACTION", action, "drop")->required()->check(CLI::IsMember({"drop"}));
  bool weights = false;
  line.app.add_flag("--weights", weights, "also loaded models' weights, with which a daemon starts at once");
  line.add_json();
  line.parse();
  const Dropped dropped = drop(weights);
  if (line.json) {
    write_out(format("{\"dropped\": %ju, \"bytes\": %ju, \"in_use\": %ju}\n", uintmax_t{dropped.segments},
                     uintmax_t{dropped.bytes}, uintmax_t{dropped.in_use}));
    return kOk;
  }
  write_out(format("%ju segments dropped, %s freed\n", uintmax_t{dropped.segments},
                   human_bytes(static_cast<double>(dropped.bytes)).c_str()));
  if (dropped.in_use != 0)
    write_note(format("%ju in use by a running daemon: unload its models (ellm models --unload) or stop it first",
                      uintmax_t{dropped.in_use}));
  return kOk;
}

}  // namespace ellm::cli
