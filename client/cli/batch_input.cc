// See batch_input.h.
#include "client/cli/batch_input.h"

#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstdlib>
#include <cstring>

#include "client/cli/failure.h"
#include "client/cli/output.h"

namespace ellm::cli {
namespace {

/// FNV-1a of 64 bits (RFC draft eastlake-fnv): tells a line from its edited self.
uint64_t hash_of(std::string_view text) {
  uint64_t hash = 0xcbf29ce484222325;
  for (char c : text) hash = (hash ^ static_cast<unsigned char>(c)) * 0x100000001b3;
  return hash;
}

std::string name_in(std::string_view text) {
  try {
    return custom_id_of(parse_line(text));
  } catch (const LineError&) {
    return "";  // said when its turn comes
  }
}

struct Line {
  char* text = nullptr;
  size_t room = 0;
  ~Line() { free(text); }
};

}  // namespace

BatchInput::BatchInput(const std::string& path) : path_(path), file_(fopen(path.c_str(), "re")) {
  if (!file_) throw Failure(errno == EACCES ? kDenied : kNoInput, "cannot open " + path + ": " + strerror(errno));
  struct stat stat;
  if (fstat(fileno(file_.get()), &stat) != 0 || !S_ISREG(stat.st_mode))
    throw Failure(kNoInput, path + " is no regular file: a batch is read twice, put it into one");
  Line line;
  uint64_t offset = 0, number = 0;
  for (ssize_t got; (got = getline(&line.text, &line.room, file_.get())) > 0; offset += static_cast<uint64_t>(got)) {
    number++;
    std::string_view text(line.text, static_cast<size_t>(got));
    size_t begin = 0;
    if (number == 1 && text.starts_with("\xEF\xBB\xBF")) text.remove_prefix(begin = 3);  // a byte order mark
    while (!text.empty() && (text.back() == '\n' || text.back() == '\r')) text.remove_suffix(1);
    if (text.find_first_not_of(" \t") == text.npos) continue;
    lines_.push_back({{name_in(text), hash_of(text), number}, offset + begin, text.size()});
    InputLine& added = lines_.back();
    if (added.custom_id.empty()) continue;
    auto [other, first] = index_.emplace(added.custom_id, lines_.size() - 1);
    if (!first) added.repeats = lines_[other->second].number;
  }
  if (ferror(file_.get())) throw Failure(kNoInput, "cannot read " + path + ": " + strerror(errno));
}

size_t BatchInput::find(const std::string& custom_id) const {
  auto found = index_.find(custom_id);
  return found == index_.end() ? lines_.size() : found->second;
}

std::string BatchInput::read(const InputLine& line) const {
  std::string text(line.bytes, '\0');
  for (size_t have = 0; have < text.size();) {
    const auto at = static_cast<off_t>(line.offset + have);
    const ssize_t got = pread(fileno(file_.get()), text.data() + have, text.size() - have, at);
    if (got < 0 && errno == EINTR) continue;
    if (got <= 0) break;
    have += static_cast<size_t>(got);
  }
  if (hash_of(text) != line.hash)
    throw Failure(kData, format("%s: line %ju has changed while the batch ran: run the command again", path_.c_str(),
                                static_cast<uintmax_t>(line.number)));
  return text;
}

}  // namespace ellm::cli
