// See batch_output.h.
#include "client/cli/batch_output.h"

#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>

#include "client/cli/failure.h"
#include "client/cli/output.h"

namespace ellm::cli {
namespace {

namespace json = boost::json;

constexpr std::string_view kBegin = "{\"id\": \"batch_req_";
constexpr const char* kAdvice = "; give another --output, or --restart to begin anew";

/// A result line that this program has written.
struct Known {
  std::string id, custom_id;
  bool failed = false, broken = false;  // broken: without a response
};

bool parse_known(std::string_view line, Known& known) {
  if (!line.starts_with(kBegin)) return false;
  try {
    const json::value value = parse_line(line);
    const json::object& object = value.as_object();
    known.id = object.at("id").as_string();
    known.custom_id = custom_id_of(value);
    const json::value& response = object.at("response");
    known.broken = response.is_null();
    known.failed = known.broken || response.as_object().at("status_code").to_number<int>() != 200;
    return true;
  } catch (const std::exception&) {
    return false;
  }
}

/// Calls `each(line)` for the whole lines of a file; returns what stands behind the last newline.
template <class Each>
std::string for_each_line(int fd, const std::string& path, const Each& each) {
  std::string buffer;
  char piece[1 << 16];
  for (off_t at = 0;;) {
    const ssize_t got = pread(fd, piece, sizeof piece, at);
    if (got < 0 && errno == EINTR) continue;
    if (got < 0) throw Failure(kNoInput, "cannot read " + path + ": " + strerror(errno));
    if (got == 0) return buffer;
    at += got;
    buffer.append(piece, static_cast<size_t>(got));
    size_t begin = 0;
    for (size_t end; (end = buffer.find('\n', begin)) != std::string::npos; begin = end + 1)
      each(std::string_view(buffer).substr(begin, end - begin));
    buffer.erase(0, begin);
  }
}

}  // namespace

BatchOutput::BatchOutput(const std::string& path, const BatchInput& input, bool restart)
    : input_(input), path_(path), ahead_path_(path + ".ahead") {
  open(path, restart);
  if (!regular_) return;
  if (restart || fresh_) {
    if (ftruncate(fd_, 0) != 0) throw Failure(kOutput, "cannot write " + path_ + ": " + strerror(errno));
    unlink(ahead_path_.c_str());
  } else {
    resume();
  }
  ahead_fd_ = ::open(ahead_path_.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0666);
  if (ahead_fd_ < 0) throw Failure(kOutput, "cannot write " + ahead_path_ + ": " + strerror(errno));
  resume_ahead();
}

BatchOutput::~BatchOutput() {
  if (fd_ >= 0) close(fd_);
  if (ahead_fd_ >= 0) close(ahead_fd_);
}

void BatchOutput::open(const std::string& path, bool restart) {
  struct stat output, source;
  if (path == "-") {
    path_ = "the output";
    fd_ = fcntl(STDOUT_FILENO, F_DUPFD_CLOEXEC, 3);
  } else {
    fresh_ = stat(path.c_str(), &output) != 0;
    const bool other = !fresh_ && !S_ISREG(output.st_mode);  // a pipe that is open to read, too, would never be closed
    fd_ = ::open(path.c_str(), (other ? O_WRONLY : O_RDWR | O_CREAT) | O_CLOEXEC, 0666);
  }
  if (fd_ < 0 || fstat(fd_, &output) != 0)
    throw Failure(errno == EACCES ? kDenied : kOutput, "cannot write " + path_ + ": " + strerror(errno));
  if (stat(input_.path().c_str(), &source) == 0 && source.st_dev == output.st_dev && source.st_ino == output.st_ino)
    throw Failure(kUsage, path_ + " is the input itself: give another --output");
  regular_ = path != "-" && S_ISREG(output.st_mode);
  if (regular_ && flock(fd_, LOCK_EX | LOCK_NB) != 0)
    throw Failure(kBusy, "another `ellm batch` writes " + path_ + ": wait for its end");
  if (!regular_ && restart && path != "-") throw Failure(kUsage, path_ + " is no file: there is nothing to restart");
}

/// Takes what an earlier run has written; cuts a last line that is not whole.
void BatchOutput::resume() {
  const std::string rest = for_each_line(fd_, path_, [&](std::string_view line) {
    check(next_, line);
    next_++;
    end_ += line.size() + 1;
  });
  const size_t shown = std::min(rest.size(), kBegin.size());
  if (rest.compare(0, shown, kBegin, 0, shown) != 0)
    throw Failure(kData, path_ + " holds something else than results of `ellm batch`" + kAdvice);
  if (!rest.empty() && ftruncate(fd_, static_cast<off_t>(end_)) != 0)
    throw Failure(kOutput, "cannot write " + path_ + ": " + strerror(errno));
}

void BatchOutput::check(size_t index, std::string_view line) {
  Known known;
  const std::string where = format("%s, line %zu", path_.c_str(), index + 1);
  if (!parse_known(line, known)) throw Failure(kData, where + " is no result of `ellm batch`" + kAdvice);
  const std::string& input = input_.path();
  if (index >= input_.lines().size())
    throw Failure(kData, where + ": there are more results than lines in " + input + kAdvice);
  const InputLine& expected = input_.lines()[index];
  const std::string there = "line " + std::to_string(expected.number) + " of " + input;
  if (known.custom_id != expected.custom_id)
    throw Failure(kData, where + " is the result of " + quoted(known.custom_id) + ", but " + there + " is " +
                             quoted(expected.custom_id) + ": the input has changed" + kAdvice);
  if (known.id != result_id(expected.hash))
    throw Failure(kData, where + " is the result of " + quoted(known.custom_id) +
                             ", which has changed since: " + there + kAdvice);
  failed_ += known.failed;
}

/// Takes what came early in an earlier run; what does not fit is asked for again. So are broken lines, which cost
/// nothing: one that repeats a custom_id cannot be told from that one's first line here.
void BatchOutput::resume_ahead() {
  const std::string rest = for_each_line(ahead_fd_, ahead_path_, [&](std::string_view line) {
    ahead_end_ += line.size() + 1;
    Known known;
    if (!parse_known(line, known) || known.broken) return;
    const size_t index = input_.find(known.custom_id);
    if (index == input_.lines().size() || has(index) || known.id != result_id(input_.lines()[index].hash)) return;
    held_.emplace(index, line);
    failed_ += known.failed;
  });
  if (!rest.empty() && ftruncate(ahead_fd_, static_cast<off_t>(ahead_end_)) != 0)
    throw Failure(kOutput, "cannot write " + ahead_path_ + ": " + strerror(errno));
  auto first = held_.begin();
  if (first == held_.end() || first->first != next_) return;
  std::string line = std::move(first->second);
  held_.erase(first);
  put(next_, std::move(line), false);  // and those behind it
}

void BatchOutput::put(size_t index, std::string line, bool failed) {
  failed_ += failed;
  if (index != next_) {
    if (regular_) write(ahead_fd_, ahead_end_, line + "\n", ahead_path_);
    held_.emplace(index, std::move(line));
    return;
  }
  std::string bytes = std::move(line) + "\n";
  auto last = held_.begin();
  size_t next = index + 1;
  for (; last != held_.end() && last->first == next; last++, next++) bytes += last->second + "\n";
  write(fd_, end_, bytes, path_);
  held_.erase(held_.begin(), last);
  next_ = next;
  if (held_.empty() && ahead_end_ > 0 && ftruncate(ahead_fd_, 0) == 0) ahead_end_ = 0;
}

void BatchOutput::write(int fd, uint64_t& end, const std::string& bytes, const std::string& path) {
  for (size_t done = 0; done < bytes.size();) {
    const char* from = bytes.data() + done;
    const ssize_t written = regular_ ? pwrite(fd, from, bytes.size() - done, static_cast<off_t>(end + done))
                                     : ::write(fd, from, bytes.size() - done);
    if (written < 0 && errno == EINTR) continue;
    if (written > 0) {
      done += static_cast<size_t>(written);
      continue;
    }
    const int error = errno;
    if (error == EPIPE) throw OutputClosed();
    std::string message = "cannot write " + path + ": " + strerror(error);
    if (regular_ && ftruncate(fd, static_cast<off_t>(end)) == 0)
      message += "; what it holds is whole, the same command goes on with it";
    throw Failure(kOutput, message);
  }
  end += bytes.size();
}

void BatchOutput::finish() {
  if (!regular_) return;
  if (fdatasync(fd_) != 0) throw Failure(kOutput, "cannot write " + path_ + ": " + strerror(errno));
  unlink(ahead_path_.c_str());
}

}  // namespace ellm::cli
