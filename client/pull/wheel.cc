// One pass lists the members, another reads them in order: a zip's directory gives both without unpacking anything to
// disk.
#include "client/pull/wheel.h"

#include <archive.h>
#include <archive_entry.h>

#include <algorithm>
#include <memory>
#include <stdexcept>
#include <vector>

namespace ellm::pull {
namespace {

using Archive = std::unique_ptr<archive, decltype([](archive* a) { archive_read_free(a); })>;

Archive open_wheel(const std::string& path) {
  Archive a(archive_read_new());
  archive_read_support_format_zip(a.get());
  if (archive_read_open_filename(a.get(), path.c_str(), 1 << 20) != ARCHIVE_OK) {
    throw std::runtime_error(path + ": not a readable wheel: " + archive_error_string(a.get()));
  }
  return a;
}

/// The number that a part's name ends in ("…/part_07.bin" → 7), 0 where there is none.
unsigned long part_number(const std::string& name) {
  const size_t end = name.find_last_of("0123456789");
  if (end == std::string::npos) return 0;
  size_t begin = end;
  while (begin > 0 && name[begin - 1] >= '0' && name[begin - 1] <= '9') --begin;
  return std::stoul(name.substr(begin, std::min<size_t>(end - begin + 1, 9)));
}

void copy_entry(archive* a, const std::string& path, const std::function<void(std::span<const char>)>& sink) {
  std::vector<char> block(1 << 20);
  for (;;) {
    const la_ssize_t n = archive_read_data(a, block.data(), block.size());
    if (n == 0) return;
    if (n < 0) throw std::runtime_error(path + ": damaged: " + archive_error_string(a));
    sink({block.data(), static_cast<size_t>(n)});
  }
}

}  // namespace

void read_members(const std::string& wheel, const std::string& suffix,
                  const std::function<void(std::span<const char>)>& sink) {
  std::vector<std::string> names;
  archive_entry* entry = nullptr;
  for (Archive a = open_wheel(wheel); archive_read_next_header(a.get(), &entry) == ARCHIVE_OK;) {
    const std::string name = archive_entry_pathname(entry);
    if (name.ends_with(suffix)) names.push_back(name);
  }
  if (names.empty()) throw std::runtime_error(wheel + ": holds no file that ends in " + suffix);
  std::ranges::sort(names, {}, [](const std::string& n) { return std::pair(part_number(n), n); });
  for (const std::string& name : names) {
    Archive a = open_wheel(wheel);
    int status;
    while ((status = archive_read_next_header(a.get(), &entry)) == ARCHIVE_OK &&
           archive_entry_pathname(entry) != name) {
    }
    if (status != ARCHIVE_OK) throw std::runtime_error(wheel + ": damaged: " + name + " cannot be read");
    copy_entry(a.get(), wheel, sink);
  }
}

}  // namespace ellm::pull
