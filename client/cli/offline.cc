// Tells a file that is not there from one that is damaged: the exit codes differ.
#include "client/cli/offline.h"

#include <unistd.h>

#include <cerrno>
#include <cstring>

#include "client/cli/failure.h"

namespace ellm::cli {

std::shared_ptr<const format::Gguf> open_model(const std::string& path) {
  if (access(path.c_str(), R_OK) != 0)
    throw Failure(errno == EACCES ? kDenied : kNoInput, "cannot open " + path + ": " + strerror(errno));
  return format::Gguf::open(path);
}

}  // namespace ellm::cli
