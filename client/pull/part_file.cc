// See part_file.h.
#include "client/pull/part_file.h"

#include <fcntl.h>
#include <openssl/evp.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <cstring>
#include <vector>

#include "client/pull/failure.h"

namespace ellm::pull {
namespace {

namespace fs = std::filesystem;

std::string mebibytes(uint64_t bytes) {
  return bytes < (10u << 20) ? std::to_string((bytes + 1023) >> 10) + " KiB"
                             : std::to_string((bytes + (1u << 20) - 1) >> 20) + " MiB";
}

struct Descriptor {
  int fd;
  ~Descriptor() {
    if (fd >= 0) ::close(fd);
  }
};

}  // namespace

Sha256::Sha256() : context_(EVP_MD_CTX_new(), EVP_MD_CTX_free) {
  EVP_DigestInit_ex(context_.get(), EVP_sha256(), nullptr);
}
void Sha256::add(std::span<const char> bytes) { EVP_DigestUpdate(context_.get(), bytes.data(), bytes.size()); }
std::string Sha256::hex() {
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

std::string parse_sha256(std::string_view text) {
  if (text.size() != 64) return {};
  std::string out;
  for (const char c : text) {
    const char lower = static_cast<char>(c >= 'A' && c <= 'F' ? c + ('a' - 'A') : c);
    if (!(lower >= '0' && lower <= '9') && !(lower >= 'a' && lower <= 'f')) return {};
    out += lower;
  }
  return out;
}

void read_file(const fs::path& path, const std::function<void(std::span<const char>)>& sink) {
  const Descriptor file{::open(path.c_str(), O_RDONLY | O_CLOEXEC)};
  if (file.fd < 0) throw PullError(EX_NOINPUT, path.string() + ": " + std::strerror(errno));
  std::vector<char> block(1 << 20);
  for (;;) {
    const ssize_t n = ::read(file.fd, block.data(), block.size());
    if (n < 0 && errno == EINTR) continue;
    if (n < 0) throw PullError(EX_IOERR, path.string() + ": " + std::strerror(errno));
    if (n == 0) return;
    sink({block.data(), static_cast<size_t>(n)});
  }
}

PartFile::PartFile(fs::path target)
    : target_(std::move(target)), part_(target_.parent_path() / ("." + target_.filename().string() + ".part")) {
  fd_ = ::open(part_.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0644);
  if (fd_ < 0) throw PullError(EX_CANTCREAT, part_.string() + ": " + std::strerror(errno));
}

PartFile::~PartFile() {
  if (fd_ >= 0) ::close(fd_);
  if (!published_) ::unlink(part_.c_str());
}

void PartFile::write(std::span<const char> bytes) {
  while (!bytes.empty()) {
    const ssize_t n = ::write(fd_, bytes.data(), bytes.size());
    if (n < 0 && errno == EINTR) continue;
    if (n < 0) fail_to_write(target_, errno);
    bytes = bytes.subspan(static_cast<size_t>(n));
    written_ += static_cast<uint64_t>(n);
  }
}

void PartFile::publish() {
  pull::publish(part_, target_);
  published_ = true;
}

void require_space(const fs::path& directory, uint64_t bytes) {
  const fs::space_info space = fs::space(directory);
  if (space.available < bytes) {
    throw PullError(EX_CANTCREAT, directory.string() + ": " + mebibytes(bytes) + " are needed, " +
                                      mebibytes(space.available) +
                                      " are free: make room, or name another folder with --dir");
  }
}

void fail_to_write(const fs::path& path, int error) {
  std::string what = path.string() + ": " + std::strerror(error);
  std::error_code ignored;
  const fs::space_info space = fs::space(path.parent_path(), ignored);
  if (error == EFBIG) what += " (the limit on a file's size, ulimit -f)";
  if (error == ENOSPC && !ignored)
    what += " (" + mebibytes(space.available) + " are free: make room, or name another folder with --dir)";
  throw PullError(error == EACCES || error == EROFS ? EX_CANTCREAT : EX_IOERR, what);
}

void publish(const fs::path& file, const fs::path& target) {
  {
    const Descriptor written{::open(file.c_str(), O_RDONLY | O_CLOEXEC)};
    if (written.fd < 0 || ::fsync(written.fd) != 0) fail_to_write(target, errno);
  }
  if (::rename(file.c_str(), target.c_str()) != 0) fail_to_write(target, errno);
  const Descriptor folder{::open(target.parent_path().c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC)};
  if (folder.fd >= 0) ::fsync(folder.fd);  // so that the name survives a crash; not every file system can
}

}  // namespace ellm::pull
