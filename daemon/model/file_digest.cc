// See file_digest.h. The memory is a text file of one line a file: what it was like when it was read, then its digest.
// It is only ever replaced as a whole; who reads a damaged or an older one finds nothing and computes anew.
#include "daemon/model/file_digest.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>
#include <xxhash.h>

#include <cerrno>
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <map>
#include <memory>
#include <system_error>

namespace ellm::model {
namespace {

constexpr size_t kChunkBytes = 4 << 20;
constexpr size_t kMostRemembered = 1000;

std::string hex(uint64_t high, uint64_t low) {
  char text[33];
  std::snprintf(text, sizeof text, "%016llx%016llx", static_cast<unsigned long long>(high),
                static_cast<unsigned long long>(low));
  return text;
}

struct Descriptor {
  explicit Descriptor(const std::string& path) : fd(::open(path.c_str(), O_RDONLY | O_CLOEXEC)) {
    if (fd < 0) throw std::system_error(errno, std::generic_category(), path);
  }
  Descriptor(const Descriptor&) = delete;
  ~Descriptor() { ::close(fd); }
  int fd;
};

/// What changes when the file does.
std::string identity(int fd) {
  struct stat s{};
  if (::fstat(fd, &s) != 0) throw std::system_error(errno, std::generic_category(), "fstat");
  char text[160];
  std::snprintf(text, sizeof text, "%llu:%llu:%lld:%lld.%09ld:%lld.%09ld", static_cast<unsigned long long>(s.st_dev),
                static_cast<unsigned long long>(s.st_ino), static_cast<long long>(s.st_size),
                static_cast<long long>(s.st_mtim.tv_sec), s.st_mtim.tv_nsec, static_cast<long long>(s.st_ctim.tv_sec),
                s.st_ctim.tv_nsec);
  return text;
}

std::string contents_digest(int fd, const std::string& path) {
  const std::unique_ptr<XXH3_state_t, decltype(&XXH3_freeState)> state(XXH3_createState(), XXH3_freeState);
  if (!state) throw std::bad_alloc();
  XXH3_128bits_reset(state.get());
  ::posix_fadvise(fd, 0, 0, POSIX_FADV_SEQUENTIAL);
  std::vector<char> chunk(kChunkBytes);
  for (;;) {
    const ssize_t count = ::read(fd, chunk.data(), chunk.size());
    if (count < 0 && errno == EINTR) continue;
    if (count < 0) throw std::system_error(errno, std::generic_category(), path);
    if (count == 0) break;
    XXH3_128bits_update(state.get(), chunk.data(), static_cast<size_t>(count));
  }
  const XXH128_hash_t hash = XXH3_128bits_digest(state.get());
  return hex(hash.high64, hash.low64);
}

std::map<std::string, std::string> remembered(const std::string& file) {
  std::map<std::string, std::string> digests;
  std::ifstream in(file);
  for (std::string identity, digest; digests.size() < kMostRemembered && in >> identity >> digest;) {
    if (digest.size() == 32) digests[identity] = digest;
  }
  return digests;
}

void remember(const std::string& directory, const std::string& file,
              const std::map<std::string, std::string>& digests) {
  std::error_code error;
  std::filesystem::create_directories(directory, error);
  const std::string fresh = file + "." + std::to_string(::getpid());
  {
    std::ofstream out(fresh, std::ios::trunc);
    for (const auto& [identity, digest] : digests) out << identity << ' ' << digest << '\n';
    if (!out.flush()) error = std::make_error_code(std::errc::io_error);
  }
  if (!error) std::filesystem::rename(fresh, file, error);
  if (error) std::filesystem::remove(fresh, error);  // it is computed again next time
}

}  // namespace

std::string text_digest(std::string_view text) { return hex(0, XXH3_64bits(text.data(), text.size())).substr(16); }

std::string file_identity(const std::vector<std::string>& files) {
  std::string all;
  for (const std::string& path : files) all += identity(Descriptor(path).fd) + ' ';
  return all;
}

std::string file_digest(const std::vector<std::string>& files, const std::string& directory) {
  const std::string memory = directory.empty() ? "" : directory + "/digests";
  auto digests = memory.empty() ? std::map<std::string, std::string>() : remembered(memory);
  std::string all;
  bool fresh = false;
  for (const std::string& path : files) {
    const Descriptor file(path);
    std::string& digest = digests[identity(file.fd)];
    if (digest.empty()) {
      digest = contents_digest(file.fd, path);
      fresh = true;
    }
    all += digest;
  }
  if (fresh && !memory.empty()) remember(directory, memory, digests);
  return files.size() == 1 ? all : text_digest(all);
}

}  // namespace ellm::model
