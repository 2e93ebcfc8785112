// What the program writes: stdout whole and at once, stderr one line at a time. No iostreams: they cost start-up time.
#pragma once
#include <string>
#include <string_view>
#include <vector>

namespace ellm::cli {

/// Nobody reads stdout any more.
struct OutputClosed {};

/// As printf into a string.
[[gnu::format(printf, 1, 2)]] std::string format(const char* pattern, ...);

bool out_is_terminal();
bool error_is_terminal();

/// To stdout, to the byte. Throws OutputClosed, Failure.
void write_out(std::string_view bytes);

/// Control characters, but for those kept, as ^X: what others wrote can neither command a terminal nor pose as a line.
std::string visible(std::string_view text, std::string_view kept = "");

/// A model's text: as write_out, but on a terminal control characters other than newline and tab become visible, so
/// that no text can command the terminal.
void write_text(std::string_view text);

/// Text alone to stdout; on a terminal a newline is added where it does not end in one.
void write_text_alone(std::string_view text);

/// "ellm: message" on stderr, visible, newlines within it as spaces.
void write_error(std::string_view message);

/// A line on stderr beside the output, dim on a terminal that has colours, unless $NO_COLOR is set.
void write_note(std::string_view message);

/// A line on a terminal's stderr that the next one, or anything else on stderr, takes the place of; empty: wipes it.
void write_status(std::string_view line);

/// "1.5 GiB"
std::string human_bytes(double bytes);
/// "3 s", "5 min", "2 h", "4 d"
std::string human_seconds(double seconds);

/// Rows of visible cells in aligned columns; the first row is the heading. A column whose heading starts with '>' is
/// aligned right.
std::string table(std::vector<std::vector<std::string>> rows);

}  // namespace ellm::cli
