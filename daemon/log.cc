// See log.h.
#include "daemon/log.h"

#include <limits.h>
#include <poll.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cstdlib>

namespace ellm::daemon {
namespace {

/// $JOURNAL_STREAM is "device:inode" of the stream to the journal; stderr may have been redirected since.
bool stderr_is_journal() {
  const char* stream = std::getenv("JOURNAL_STREAM");
  struct stat status{};
  if (stream == nullptr || ::fstat(STDERR_FILENO, &status) != 0) return false;
  return std::to_string(status.st_dev) + ":" + std::to_string(status.st_ino) == stream;
}

}  // namespace

std::string log_line(Priority priority, const std::string& line, bool journal) {
  std::string out = journal ? "<" + std::to_string(static_cast<int>(priority)) + ">" : "ellmd: ";
  for (const char c : line) out += static_cast<unsigned char>(c) < 0x20 || c == 0x7f ? ' ' : c;
  return out + '\n';
}

void log(Priority priority, const std::string& line) {
  static const bool journal = stderr_is_journal();
  // A pipe with room takes PIPE_BUF bytes without waiting.
  std::string out = log_line(priority, line, journal);
  if (out.size() > PIPE_BUF) out.replace(PIPE_BUF - 1, std::string::npos, "\n");
  // Where the log cannot be written there is nobody to tell, and a reader that stands still must not hold us up.
  pollfd room{STDERR_FILENO, POLLOUT, 0};
  if (::poll(&room, 1, 0) != 1 || (room.revents & POLLOUT) == 0) return;
  [[maybe_unused]] const ssize_t written = ::write(STDERR_FILENO, out.data(), out.size());
}

void log_failure(const char* where, const std::exception& failure) noexcept {
  try {
    log(Priority::error, std::string(where) + ": " + failure.what());
  } catch (...) {
  }
}

}  // namespace ellm::daemon
