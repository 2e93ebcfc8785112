// Damaged model files: each is opened in a process of its own, so that a crash is a line of the table and not its end.
#include <sys/wait.h>
#include <unistd.h>

#include <cstdlib>
#include <stdexcept>

#include "daemon/format/chat_template.h"
#include "daemon/format/tokenizer.h"
#include "daemon/model/config.h"
#include "tools/conformance/report.h"

namespace ellm::conformance {
namespace {

constexpr unsigned kMostSeconds = 20;
enum Exit : int { kAccepted, kRefused, kOther };

/// What a loader does short of the weights.
Exit open_everything(const std::string& path) try {
  const auto file = format::Gguf::open(path);
  model::read_config(*file);
  const auto tokenizer = format::Tokenizer::open(*file);
  tokenizer->decode(tokenizer->encode("Once upon a time,\n\xff the end\xe2\x82\xac."), true);
  if (const auto source = file->find_string("tokenizer.chat_template")) try {
      format::ChatTemplate::parse(*source)->render(
          {{"messages", boost::json::array{{{"role", "user"}, {"content", "Hello"}}}}, {"bos_token", "<s>"}});
    } catch (const format::TemplateError&) {  // no reason to refuse a model
    }
  return kAccepted;
} catch (const format::FormatError&) {
  return kRefused;
} catch (...) {
  return kOther;
}

/// "accept", "reject", or how it died.
std::string verdict(const std::string& path) {
  const pid_t child = ::fork();
  if (child < 0) throw std::runtime_error("cannot fork");
  if (child == 0) {
    ::alarm(kMostSeconds);
    ::_exit(open_everything(path));
  }
  int status = 0;
  ::waitpid(child, &status, 0);
  if (WIFSIGNALED(status)) return "ended by signal " + std::to_string(WTERMSIG(status));
  switch (WEXITSTATUS(status)) {
    case kAccepted: return "accept";
    case kRefused: return "reject";
    default: return "ended with an error that names nothing";
  }
}

}  // namespace

std::vector<Line> malformed_lines(const Options& options) {
  const std::string folder = options.scratch / "malformed";
  const std::string command = "python3 '" + options.data + "/malformed/make_malformed.py' '" + folder + "' > /dev/null";
  if (std::system(command.c_str()) != 0) throw std::runtime_error("failed: " + command);
  Line accept{"malformed", "to accept"}, reject{"malformed", "to refuse by name"}, either{"malformed", "to survive"};
  const auto rows = split(read_file(folder + "/recipes.tsv"), "\n");
  for (size_t i = 1; i < rows.size(); ++i) {  // behind the heading
    const auto cells = split(rows[i], "\t");
    if (cells.size() < 5) continue;
    const std::string found = verdict(folder + "/" + cells[0]), what = cells[0] + ": " + found;
    if (cells[4] == "accept") accept.count(found == "accept", what);
    else if (cells[4] == "reject") reject.count(found == "reject", what);
    else either.count(found == "accept" || found == "reject", what);
  }
  return {accept, reject, either};
}

}  // namespace ellm::conformance
