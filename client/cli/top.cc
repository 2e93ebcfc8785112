// ellm top: who runs what, again and again. Totals come from the stats page, rows from status.
#include <poll.h>
#include <sys/ioctl.h>
#include <termios.h>
#include <time.h>
#include <unistd.h>

#include <optional>

#include "client/cli/command_line.h"
#include "client/cli/failure.h"
#include "client/cli/interrupt.h"
#include "client/cli/json.h"
#include "client/cli/output.h"
#include "client/cli/top_view.h"

namespace ellm::cli {
namespace {

double monotonic_seconds() {
  timespec now{};
  clock_gettime(CLOCK_MONOTONIC, &now);
  return static_cast<double>(now.tv_sec) + static_cast<double>(now.tv_nsec) / 1e9;
}

/// A terminal's second screen, without echo; everything is as before when it goes.
class Screen {
 public:
  Screen() {
    if (tcgetattr(STDIN_FILENO, &before_) == 0) {
      termios quiet = before_;
      quiet.c_lflag &= ~static_cast<tcflag_t>(ICANON | ECHO);
      keys_ = tcsetattr(STDIN_FILENO, TCSANOW, &quiet) == 0;
    }
    write_out("\033[?1049h\033[?25l");
  }
  ~Screen() {
    if (keys_) tcsetattr(STDIN_FILENO, TCSANOW, &before_);
    const char back[] = "\033[?25h\033[?1049l";
    [[maybe_unused]] const auto written = write(STDOUT_FILENO, back, sizeof back - 1);
  }
  Screen(const Screen&) = delete;
  Screen& operator=(const Screen&) = delete;

  /// Shows what fits.
  void show(const std::string& text) const {
    winsize size{};
    const bool known = ioctl(STDOUT_FILENO, TIOCGWINSZ, &size) == 0 && size.ws_row != 0 && size.ws_col != 0;
    const size_t rows = known ? size.ws_row - 1u : 24, columns = known ? size.ws_col : 80;
    std::string out = "\033[H";
    size_t begin = 0;
    for (size_t row = 0; row < rows && begin < text.size(); ++row) {
      const size_t end = std::min(text.find('\n', begin), text.size());
      out += text.substr(begin, std::min(end - begin, columns)) + "\033[K\n";
      begin = end + 1;
    }
    write_out(out + "\033[J");
  }
  bool keys() const { return keys_; }

 private:
  termios before_{};
  bool keys_ = false;
};

/// False: the user wants to leave.
bool wait(double seconds, bool keys) {
  const double end = monotonic_seconds() + seconds;
  for (double left = seconds; left > 0 && !interrupted(); left = end - monotonic_seconds()) {
    pollfd input{keys ? STDIN_FILENO : -1, POLLIN, 0};
    if (poll(&input, 1, static_cast<int>(left * 1000) + 1) <= 0 || !keys) continue;
    char key = 0;
    if (read(STDIN_FILENO, &key, 1) != 1) keys = false;
    if (key == 'q' || key == 'Q' || key == 3) return false;
  }
  return !interrupted();
}

/// The daemon as it is now; `page` is looked for again where the daemon is another one.
class Source {
 public:
  explicit Source(const CommandLine& line) : client_(line.connect([] { return interrupted(); })) {}

  client::StatusReply status() { return client_.status(); }
  client::Totals totals(const client::StatusReply& status) {
    if (!page_ || pid_ != status.pid) page_ = client::StatsPage::open(status.stats_page);
    pid_ = status.pid;
    const auto totals = page_ ? page_->read() : std::nullopt;
    return totals && totals->pid == status.pid ? *totals : totals_of(status, monotonic_seconds());
  }

 private:
  client::Client client_;
  std::optional<client::StatsPage> page_;
  uint32_t pid_ = 0;
};

}  // namespace

int top_command(Invocation& invocation) {
  CommandLine line(invocation,
                   "Who runs what, and how fast: your own requests, everybody's for an administrator. q leaves. Where\n"
                   "output is no terminal it is printed once.",
                   "  ellm top\n"
                   "  ellm top --count 1\n"
                   "  ellm top --json --interval 10 --count 0 | jq .decode_tokens_per_second");
  double interval = 1;
  uint32_t count = 0;
  line.app.add_option("--interval", interval, "Seconds between two states")
      ->type_name("SECONDS")
      ->check(CLI::Range(0.1, 3600.0));
  auto* count_option = line.app.add_option("-n,--count", count, "End after so many states; 0: never")->type_name("N");
  line.add_json();
  line.parse();
  const bool live = out_is_terminal() && !line.json;
  if (count_option->empty()) count = live ? 0 : 1;
  InterruptGuard guard(false);
  Source source(line);
  std::optional<Screen> screen;
  client::StatusReply status = source.status();
  client::Totals before = source.totals(status);
  if (live) screen.emplace();
  if (screen) screen->show(top_text(status, before, {}));
  for (uint32_t i = 0; count == 0 || i < count; ++i) {
    if (!wait(interval, screen && screen->keys())) break;
    status = source.status();
    const client::Totals now = source.totals(status);
    const Rates rates = rates_between(before, now);
    if (line.json) write_out(serialize(top_json(status, now, rates)) + "\n");
    else if (screen) screen->show(top_text(status, now, rates));
    else write_out(top_text(status, now, rates));
    before = now;
  }
  return kOk;
}

}  // namespace ellm::cli
