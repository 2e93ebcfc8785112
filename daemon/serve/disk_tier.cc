// See disk_tier.h.
#include "daemon/serve/disk_tier.h"

#include <algorithm>
#include <system_error>
#include <utility>

namespace ellm::serve {

std::shared_ptr<DiskTier> DiskTier::open(const DiskOptions& options) {
  std::string why;
  try {
    if (auto directory = DiskDirectory::open(options.directory, why))
      return std::shared_ptr<DiskTier>(new DiskTier(std::make_unique<DiskCatalog>(options, std::move(directory))));
  } catch (const std::system_error& e) {  // no thread is to be had
    why = e.what();
  }
  options.warn("prefixes are not kept on disk: " + options.directory + ": " + why);
  return nullptr;
}

DiskTier::DiskTier(std::unique_ptr<DiskCatalog> catalog)
    : catalog_(std::move(catalog)), reader_(*catalog_), writer_(*catalog_) {}

DiskCounters DiskTier::counters() const {
  std::lock_guard lock(catalog_->mutex);
  DiskCounters counters = catalog_->counters;
  counters.bytes = catalog_->files.bytes();
  counters.index_bytes = catalog_->index_bytes();
  counters.looking =
      !catalog_->surveyed || std::ranges::any_of(catalog_->models, [](const auto& model) { return !model->known; });
  return counters;
}

uint64_t DiskTier::promised_bytes() const {
  const uint64_t most = catalog_->options.index_bytes;
  return most - std::min(most, counters().index_bytes);
}

std::shared_ptr<DiskModel> DiskTier::attach(const shm::DiskFormat& format, std::function<void()> wake) {
  auto model = std::make_shared<DiskModel>();
  model->format = format;
  model->page_bytes = format.geometry.page_bytes();
  model->name_prefix = shm::disk_file_prefix(format);
  model->wake = std::move(wake);
  std::lock_guard lock(catalog_->mutex);
  catalog_->models.push_back(model);
  catalog_->for_reader.notify_one();
  return model;
}

void DiskTier::detach(DiskModel& model, std::span<const std::unique_ptr<DiskFetch>> fetches, const DiskWrite& write) {
  reader_.withdraw(model, fetches);
  writer_.withdraw(write);
  std::lock_guard lock(catalog_->mutex);
  std::erase_if(catalog_->models, [&](const auto& each) { return each.get() == &model; });
}

void DiskTier::no_memory() {
  std::unique_lock lock(catalog_->mutex);
  catalog_->no_memory(lock);
}

void DiskTier::erase(const std::string& name_prefix, std::optional<uint64_t> name_space) {
  writer_.erase(name_prefix, name_space);
}

}  // namespace ellm::serve
