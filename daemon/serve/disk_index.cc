// See disk_index.h. Pages behind one parent are neighbours in the order by text, as in shm/page_store.cc.
#include "daemon/serve/disk_index.h"

#include <algorithm>
#include <iterator>
#include <new>

namespace ellm::serve {

bool DiskTexts::Order::less(const Text& a, const Text& b) {
  if (a.parent != b.parent) return a.parent < b.parent;
  if (a.name_space != b.name_space) return a.name_space < b.name_space;
  return std::lexicographical_compare(a.tokens.begin(), a.tokens.end(), b.tokens.begin(), b.tokens.end());
}

void DiskTexts::insert(const std::shared_ptr<DiskFile>& file, const shm::DiskRun& run) {
  auto& mine = by_file_[file.get()];
  try {
    mine.reserve(run.pages.size());
    DiskPlace place{run.parent, run.name_space, {}, file, 0};
    for (const shm::DiskPage& page : run.pages) {
      place.page = page;
      if (const auto [at, is_new] = places_.insert(place); is_new) mine.push_back(at);  // else another file has it, too
      place.parent = page.key;
      ++place.index;
    }
  } catch (const std::bad_alloc&) {
    erase(*file);
    throw;
  }
}

uint32_t DiskTexts::erase(const DiskFile& file) {
  const auto found = by_file_.find(&file);
  if (found == by_file_.end()) return 0;
  for (const auto& place : found->second) places_.erase(place);
  const auto pages = static_cast<uint32_t>(found->second.size());
  by_file_.erase(found);
  return pages;
}

const DiskPlace* DiskTexts::find(const shm::PageKey& parent, uint64_t name_space, std::span<const uint32_t> tokens,
                                 uint32_t& common) const {
  const Text wanted{parent, name_space, tokens.first(std::min<size_t>(tokens.size(), shm::kPageTokens))};
  const DiskPlace* best = nullptr;
  common = 0;
  const auto consider = [&](const DiskPlace& place) {
    if (place.parent != parent || place.name_space != name_space) return;
    const auto there = Order::text_of(place).tokens;
    const auto end = std::mismatch(there.begin(), there.end(), wanted.tokens.begin(), wanted.tokens.end()).first;
    const auto same = static_cast<uint32_t>(end - there.begin());
    if (same > common) best = &place, common = same;
  };
  const auto next = places_.lower_bound(wanted);
  if (next != places_.end()) consider(*next);
  if (next != places_.begin()) consider(*std::prev(next));
  return best;
}

void DiskFiles::add(std::shared_ptr<DiskFile> file) {
  const auto [at, is_new] = files_.try_emplace(file->name);
  if (!is_new) bytes_ -= at->second->bytes;
  bytes_ += file->bytes;
  at->second = std::move(file);
}

void DiskFiles::erase(const std::string& name) {
  const auto found = files_.find(name);
  if (found == files_.end()) return;
  bytes_ -= found->second->bytes;
  files_.erase(found);
}

std::shared_ptr<DiskFile> DiskFiles::find(const std::string& name) const {
  const auto found = files_.find(name);
  return found == files_.end() ? nullptr : found->second;
}

std::shared_ptr<DiskFile> DiskFiles::oldest() const {
  const auto found = std::min_element(files_.begin(), files_.end(), [](const auto& a, const auto& b) {
    const DiskFile &x = *a.second, &y = *b.second;
    return x.last_use_s != y.last_use_s ? x.last_use_s < y.last_use_s : x.depth > y.depth;
  });
  return found == files_.end() ? nullptr : found->second;
}

}  // namespace ellm::serve
