// See stats_page.h.
#include "client/stats_page.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>
#include <utility>

namespace ellm::client {
namespace {

constexpr int kTries = 1000;  // a write takes less than a microsecond
constexpr size_t kHeadBytes = 32;

}  // namespace

std::optional<StatsPage> StatsPage::open(const std::string& path) {
  const int fd = ::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK);
  if (fd < 0) return std::nullopt;
  struct stat status{};
  StatsPage page;
  if (::fstat(fd, &status) == 0 && S_ISREG(status.st_mode) && static_cast<size_t>(status.st_size) >= kHeadBytes) {
    void* at = ::mmap(nullptr, static_cast<size_t>(status.st_size), PROT_READ, MAP_SHARED, fd, 0);
    if (at != MAP_FAILED) {
      page.data_ = static_cast<const StatsPageData*>(at);
      page.mapped_ = static_cast<size_t>(status.st_size);
    }
  }
  ::close(fd);
  if (!page.data_ || page.data_->magic != StatsPageData::kMagic || page.data_->layout != StatsPageData::kLayout)
    return std::nullopt;
  return page;
}

StatsPage::StatsPage(StatsPage&& other) noexcept { *this = std::move(other); }

StatsPage& StatsPage::operator=(StatsPage&& other) noexcept {
  std::swap(data_, other.data_);
  std::swap(mapped_, other.mapped_);
  return *this;
}

StatsPage::~StatsPage() {
  if (data_) ::munmap(const_cast<StatsPageData*>(data_), mapped_);
}

std::optional<Totals> StatsPage::read() const {
  const size_t bytes = std::min<uint64_t>({data_->bytes, sizeof(Totals), mapped_ - kHeadBytes});
  for (int i = 0; i < kTries; ++i) {
    const uint64_t before = data_->sequence.load(std::memory_order_acquire);
    if (before % 2 != 0) continue;
    uint64_t words[StatsPageData::kWords] = {};
    for (size_t w = 0; w < bytes / 8; ++w) words[w] = data_->words[w].load(std::memory_order_relaxed);
    std::atomic_thread_fence(std::memory_order_acquire);
    if (data_->sequence.load(std::memory_order_relaxed) != before) continue;
    Totals totals;
    std::memcpy(static_cast<void*>(&totals), words, sizeof totals);
    return totals;
  }
  return std::nullopt;
}

}  // namespace ellm::client
