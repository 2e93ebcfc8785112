// See fetch.h.
#include "client/pull/fetch.h"

#include "client/pull/failure.h"
#include "daemon/format/gguf.h"
#include "daemon/format/model_name.h"

namespace ellm::pull {
namespace {

namespace fs = std::filesystem;

fs::path part_path(const Source& source, const fs::path& directory, size_t index) {
  return directory / format::part_file_name(source.name, index + 1, source.urls.size());
}

void check_sum(const fs::path& file, const std::string& address, const std::string& expected,
               const Progress& progress) {
  if (expected.empty()) return;
  Sha256 sha;
  uint64_t done = 0;
  const uint64_t total = fs::file_size(file);
  read_file(file, [&](std::span<const char> bytes) {
    sha.add(bytes);
    progress("checking", done += bytes.size(), total);
  });
  if (const std::string found = sha.hex(); found != expected) {
    throw PullError(EX_DATAERR, address + ": wrong checksum: sha256 is " + found + ", expected " + expected);
  }
}

void check_count(const Source& source, const std::vector<std::string>& sha256) {
  if (sha256.empty() || sha256.size() == source.urls.size()) return;
  throw PullError(EX_USAGE, source.name + ": " + std::to_string(sha256.size()) + " checksums for " +
                                std::to_string(source.urls.size()) + " files: give --sha256 once for each, in order");
}

/// Of a split model, whether all of it will fit, before hours go into its first part.
void require_space_for_all(Downloader& downloader, const Source& source, const fs::path& folder) {
  if (source.urls.size() == 1) return;  // its own headers say so in time
  uint64_t missing = 0;
  for (size_t i = 0; i < source.urls.size(); ++i) {
    std::error_code absent;
    const uint64_t size = downloader.size_of(source.urls[i], source.hub),
                   have = fs::file_size(part_path(source, folder, i), absent);
    missing += size - std::min(size, absent ? 0 : have);
  }
  require_space(folder, missing);
}

/// The text of an error without the hidden folder in front of the file's name.
std::string without(std::string text, const fs::path& folder) {
  const std::string prefix = folder.string() + "/";
  for (size_t at; (at = text.find(prefix)) != std::string::npos;) text.erase(at, prefix.size());
  return text;
}

}  // namespace

Staged Staged::fetch(const Source& source, const fs::path& directory, const FetchOptions& options,
                     const Progress& progress) {
  check_count(source, options.sha256);
  Staged staged(source, directory);
  const fs::path& folder = staged.folder_.path();
  Downloader downloader(options.download);
  require_space_for_all(downloader, source, folder);
  std::vector<std::string> stated;
  for (size_t i = 0; i < source.urls.size(); ++i) {
    staged.files_.push_back(part_path(source, folder, i));
    const auto shown = [&](const std::string& what, uint64_t done, uint64_t total) {
      progress(source.urls.size() == 1 ? what
                                       : what + " " + std::to_string(i + 1) + "/" + std::to_string(source.urls.size()),
               done, total);
    };
    const Fetched fetched = downloader.fetch(source.urls[i], source.hub, staged.files_.back(), shown);
    stated.push_back(options.sha256.empty() ? fetched.sha256 : options.sha256[i]);
  }
  try {
    for (size_t i = 0; i < source.urls.size(); ++i)
      check_sum(staged.files_[i], public_address(source.urls[i]), stated[i], progress);
    format::Gguf::open(staged.files_.front());
  } catch (const format::FormatError& error) {
    staged.remove();
    throw PullError(EX_DATAERR, public_address(source.urls.front()) + ": refused: " + without(error.what(), folder));
  } catch (const PullError&) {
    staged.remove();
    throw;
  }
  return staged;
}

std::string Staged::publish() {
  for (auto file = files_.rbegin(); file != files_.rend(); ++file) pull::publish(*file, directory_ / file->filename());
  const std::string first = directory_ / files_.front().filename();
  remove();
  return first;
}

std::string find_installed(const Source& source, const fs::path& directory) {
  for (size_t i = 0; i < source.urls.size(); ++i) {
    if (!fs::exists(part_path(source, directory, i))) return {};
  }
  return part_path(source, directory, 0);
}

void verify_installed(const Source& source, const fs::path& directory, const std::vector<std::string>& sha256,
                      const Progress& progress) {
  check_count(source, sha256);
  for (size_t i = 0; i < sha256.size(); ++i) {
    const fs::path file = part_path(source, directory, i);
    check_sum(file, file, sha256[i], progress);
  }
}

}  // namespace ellm::pull
