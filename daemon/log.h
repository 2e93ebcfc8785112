// Log lines on stderr: with a "<N>" priority in front where stderr is the journal, plain otherwise. What users send and
// models answer is never logged. Any thread; a line is one write.
#pragma once
#include <exception>
#include <string>

namespace ellm::daemon {

enum class Priority : int { error = 3, warning = 4, notice = 5, info = 6 };

void log(Priority priority, const std::string& line);
/// What ended somebody's work, where nothing else knows of it; without memory for the line it is not told.
void log_failure(const char* where, const std::exception& failure) noexcept;

/// The line as it is written: no control characters, so that no name in it can forge another line.
std::string log_line(Priority priority, const std::string& line, bool journal);

}  // namespace ellm::daemon
