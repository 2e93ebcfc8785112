// libedit reads the terminal through read_character(), which returns where a signal came, so that Ctrl-C ends a line at
// once.
#include "client/cli/line_editor.h"

#include <histedit.h>
#include <langinfo.h>
#include <poll.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <clocale>
#include <cstdlib>
#include <cstring>
#include <cwchar>

#include "client/cli/interrupt.h"

namespace ellm::cli {
namespace {

constexpr int kHistoryLines = 2000;
const char* current_prompt = "";

constexpr wchar_t kControlD = L'\4';

int read_character(EditLine*, wchar_t* character) {
  mbstate_t state{};
  for (;;) {
    if (interrupted()) return -1;  // came just before
    char byte;
    ssize_t got = ::read(STDIN_FILENO, &byte, 1);
    if (got < 0 && errno == EINTR) continue;
    if (got <= 0) return static_cast<int>(got);
    size_t used = mbrtowc(character, &byte, 1, &state);
    if (used == static_cast<size_t>(-2)) continue;  // more bytes belong to it
    if (used == static_cast<size_t>(-1)) *character = L'?', state = {};
    if (used == 0) *character = kControlD;  // what the terminal queues for one typed before editing began
    return 1;
  }
}

/// More was typed or pasted already.
bool more_is_waiting() {
  constexpr int kPasteGapMs = 20;
  pollfd input{STDIN_FILENO, POLLIN, 0};
  return poll(&input, 1, kPasteGapMs) > 0 && (input.revents & POLLIN);
}

bool read_plain_line(std::string& line) {
  line.clear();
  char* buffer = nullptr;
  size_t size = 0;
  ssize_t length = getline(&buffer, &size, stdin);
  if (length > 0) line.assign(buffer, static_cast<size_t>(length));
  free(buffer);
  return length > 0;
}

}  // namespace

struct LineEditor::Terminal {
  EditLine* editor;
  History* history = history_init();
  std::string path;

  explicit Terminal(const std::string& history_path) : path(history_path) {
    setlocale(LC_CTYPE, "");
    if (strcmp(nl_langinfo(CODESET), "UTF-8") != 0) setlocale(LC_CTYPE, "C.UTF-8");
    editor = el_init("ellm", stdin, stdout, stderr);
    HistEvent event;
    history_(&event, H_SETSIZE, kHistoryLines);
    history_(&event, H_SETUNIQUE, 1);
    if (!path.empty()) history_(&event, H_LOAD, path.c_str());
    el_set(editor, EL_PROMPT, +[](EditLine*) { return const_cast<char*>(current_prompt); });
    el_set(editor, EL_EDITOR, "emacs");
    el_set(editor, EL_SIGNAL, 1);  // it restores the terminal before a signal ends or stops us
    el_set(editor, EL_HIST, ::history, history);
    el_set(editor, EL_BIND, "^R", "em-inc-search-prev", nullptr);
    el_set(editor, EL_GETCFN, read_character);
    el_source(editor, nullptr);
  }
  ~Terminal() {
    el_end(editor);
    history_end(history);
  }
  template <class... A>
  int history_(HistEvent* event, int operation, A... arguments) {
    return ::history(history, event, operation, arguments...);
  }

  void remember(const std::string& text) {
    HistEvent event;
    history_(&event, H_ENTER, text.c_str());
    if (!path.empty()) history_(&event, H_SAVE, path.c_str());
  }
};

LineEditor::LineEditor(const std::string& history_path) {
  if (isatty(STDIN_FILENO)) terminal_ = std::make_unique<Terminal>(history_path);
}
LineEditor::~LineEditor() = default;

LineEditor::Result LineEditor::read_one(const char* prompt, std::string& line) {
  if (!terminal_) return read_plain_line(line) ? Result::line : Result::end;
  current_prompt = prompt;
  clear_interrupt();
  int count = 0;
  const char* got = el_gets(terminal_->editor, &count);
  if (interrupted()) {
    el_reset(terminal_->editor);
    return Result::interrupted;
  }
  if (!got || count <= 0) return Result::end;
  line.assign(got, static_cast<size_t>(count));
  return Result::line;
}

LineEditor::Result LineEditor::read(std::string& text) {
  text.clear();
  std::string line;
  for (const char* prompt = "> ";; prompt = "… ") {
    Result result = read_one(prompt, line);
    if (result == Result::interrupted || (result == Result::end && text.empty())) return result;
    if (result == Result::end) break;
    if (line.ends_with('\n')) line.pop_back();
    bool goes_on = line.ends_with('\\');
    if (goes_on) line.pop_back();
    text += line;
    if (!goes_on && !(terminal_ && more_is_waiting())) break;
    text += '\n';
  }
  if (terminal_ && text.find_first_not_of(" \t\n") != std::string::npos) terminal_->remember(text);
  return Result::line;
}

std::string history_path() {
  auto variable = [](const char* name) {
    const char* value = getenv(name);
    return std::string(value ? value : "");
  };
  std::string state = variable("XDG_STATE_HOME"), home = variable("HOME");
  if (state.empty() && home.empty()) return "";
  std::string directory = (state.empty() ? home + "/.local/state" : state) + "/ellm";
  for (size_t slash = 1; (slash = directory.find('/', slash)) != std::string::npos; slash++)
    mkdir(directory.substr(0, slash).c_str(), 0700);
  mkdir(directory.c_str(), 0700);
  return directory + "/history";
}

}  // namespace ellm::cli
