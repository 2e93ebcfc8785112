// The only file that calls write(2).
#include "client/cli/output.h"

#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdarg>
#include <cstdio>
#include <cstdlib>
#include <cstring>

#include "client/cli/failure.h"

namespace ellm::cli {
namespace {

/// False with errno where not all could be written.
bool write_whole(int fd, std::string_view bytes) {
  while (!bytes.empty()) {
    ssize_t written = write(fd, bytes.data(), bytes.size());
    if (written < 0 && errno == EINTR) continue;
    if (written < 0) return false;
    bytes.remove_prefix(static_cast<size_t>(written));
  }
  return true;
}

/// https://no-color.org, and terminals that know no escape sequences.
bool has_colours() {
  const char *no_colour = getenv("NO_COLOR"), *terminal = getenv("TERM");
  return !(no_colour && *no_colour) && terminal && *terminal && std::string_view(terminal) != "dumb";
}

/// Columns of a terminal that a text takes, to a good approximation: its characters.
size_t width(std::string_view text) {
  return static_cast<size_t>(std::count_if(text.begin(), text.end(), [](char c) { return (c & 0xC0) != 0x80; }));
}

}  // namespace

std::string format(const char* pattern, ...) {
  va_list arguments;
  va_start(arguments, pattern);
  va_list again;
  va_copy(again, arguments);
  std::string text(static_cast<size_t>(std::max(0, vsnprintf(nullptr, 0, pattern, arguments))), '\0');
  vsnprintf(text.data(), text.size() + 1, pattern, again);
  va_end(again);
  va_end(arguments);
  return text;
}

bool out_is_terminal() {
  static const bool is = isatty(STDOUT_FILENO);
  return is;
}
bool error_is_terminal() {
  static const bool is = isatty(STDERR_FILENO);
  return is;
}

void write_out(std::string_view bytes) {
  if (write_whole(STDOUT_FILENO, bytes)) return;
  if (errno == EPIPE) throw OutputClosed();
  throw Failure(kOutput, std::string("cannot write the output: ") + strerror(errno));
}

std::string visible(std::string_view text, std::string_view kept) {
  std::string out;
  for (size_t i = 0; i < text.size(); i++) {
    auto byte = static_cast<unsigned char>(text[i]);
    bool c1 = byte == 0xC2 && i + 1 < text.size() && static_cast<unsigned char>(text[i + 1]) < 0xA0;
    if ((byte < 0x20 || byte == 0x7f) && kept.find(text[i]) == kept.npos) out += {'^', static_cast<char>(byte ^ 0x40)};
    else if (c1) out += "\xEF\xBF\xBD", i++;
    else out += text[i];
  }
  return out;
}

void write_text(std::string_view text) { write_out(out_is_terminal() ? visible(text, "\n\t") : std::string(text)); }

void write_text_alone(std::string_view text) {
  write_text(text);
  if (out_is_terminal() && !text.empty() && text.back() != '\n') write_out("\n");
}

void write_error(std::string_view message) {
  std::string line = "ellm: " + std::string(message);
  std::replace(line.begin(), line.end(), '\n', ' ');
  write_whole(STDERR_FILENO, visible(line) + "\n");
}

void write_note(std::string_view message) {
  std::string line = visible(message);
  static const bool dims = error_is_terminal() && has_colours();
  if (dims) line = "\033[2m" + line + "\033[0m";
  write_whole(STDERR_FILENO, line + "\n");
}

void write_status(std::string_view line) { write_whole(STDERR_FILENO, "\r\033[K" + std::string(line)); }

std::string human_bytes(double bytes) {
  static const char* const kUnits[] = {"B", "KiB", "MiB", "GiB", "TiB"};
  int unit = 0;
  while (bytes >= 1024 && unit < 4) bytes /= 1024, unit++;
  return format(unit > 0 && bytes < 10 ? "%.1f %s" : "%.0f %s", bytes, kUnits[unit]);
}

std::string human_seconds(double seconds) {
  if (seconds < 120) return format("%.0f s", seconds);
  if (seconds < 120 * 60) return format("%.0f min", seconds / 60);
  if (seconds < 48 * 3600) return format("%.0f h", seconds / 3600);
  return format("%.0f d", seconds / 86400);
}

std::string table(std::vector<std::vector<std::string>> rows) {
  for (auto& row : rows)
    for (std::string& cell : row) cell = visible(cell);
  std::vector<size_t> widths(rows.at(0).size());
  auto cell = [&](size_t row, size_t column) {
    std::string_view text = rows[row][column];
    if (row == 0 && text.substr(0, 1) == ">") text.remove_prefix(1);
    return text;
  };
  for (size_t row = 0; row < rows.size(); row++)
    for (size_t column = 0; column < widths.size(); column++)
      widths[column] = std::max(widths[column], width(cell(row, column)));
  std::string out;
  for (size_t row = 0; row < rows.size(); row++) {
    for (size_t column = 0; column < widths.size(); column++) {
      std::string_view text = cell(row, column);
      std::string space(widths[column] - width(text), ' ');
      bool right = rows[0][column].starts_with('>'), last = column + 1 == widths.size();
      if (right) out += space;
      out += text;
      if (!right && !last) out += space;
      out += last ? "\n" : "  ";
    }
  }
  return out;
}

}  // namespace ellm::cli
