// As long as it lives no file of this process grows beyond so many bytes: writing more fails with EFBIG, as it does
// with ENOSPC on a full disk.
#pragma once
#include <sys/resource.h>

#include <csignal>

namespace ellm::tests {

class FileLimit {
 public:
  explicit FileLimit(rlim_t bytes) {
    signal_ = std::signal(SIGXFSZ, SIG_IGN);  // it would end the process
    getrlimit(RLIMIT_FSIZE, &before_);
    const rlimit limit{bytes, before_.rlim_max};
    setrlimit(RLIMIT_FSIZE, &limit);
  }
  ~FileLimit() {
    setrlimit(RLIMIT_FSIZE, &before_);
    std::signal(SIGXFSZ, signal_);
  }
  FileLimit(const FileLimit&) = delete;
  FileLimit& operator=(const FileLimit&) = delete;

 private:
  rlimit before_{};
  void (*signal_)(int) = SIG_DFL;
};

}  // namespace ellm::tests
