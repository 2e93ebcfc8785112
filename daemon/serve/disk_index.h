// What is on disk: the files of the directory, and for each loaded model the pages in them by their place in a text.
// All derived from names and headers. Guarded by DiskCatalog's mutex; never touches the disk.
#pragma once
#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <span>
#include <string>
#include <unordered_map>
#include <vector>

#include "shm/disk_file.h"

namespace ellm::serve {

struct DiskFile {
  std::string name;
  uint64_t bytes = 0, name_space = 0, payload_offset = 0;
  int64_t last_use_s = 0;  // of the wall clock: it goes on over reboots
  uint32_t depth = 0;      // pages of the text before the file's first
  bool touched = false;    // last_use_s is newer than what the file system knows
};

/// A page in a file.
struct DiskPlace {
  shm::PageKey parent;
  uint64_t name_space = 0;
  shm::DiskPage page;
  std::shared_ptr<DiskFile> file;
  uint32_t index = 0;  // in the file
};

/// Memory that the index has for a page in a file, for a file, and for a file's pages together: nodes, names, and what
/// each allocation costs beside its bytes (tests/serve/engine_memory_test.cc holds them against what is allocated).
inline constexpr uint64_t kDiskPlaceMemory = sizeof(DiskPlace) + 32 + 8 + 16;
inline constexpr uint64_t kDiskFileMemory = sizeof(DiskFile) + 256, kDiskRunMemory = 96;

/// The pages of one model's files. What is added is added whole, or (std::bad_alloc) not at all; so with DiskFiles.
class DiskTexts {
 public:
  void insert(const std::shared_ptr<DiskFile>& file, const shm::DiskRun& run);
  /// All pages of a file; how many.
  uint32_t erase(const DiskFile& file);
  /// The page behind `parent` that has the most first tokens in common with `tokens`, and how many. Null: none has one.
  const DiskPlace* find(const shm::PageKey& parent, uint64_t name_space, std::span<const uint32_t> tokens,
                        uint32_t& common) const;
  uint64_t memory_bytes() const { return places_.size() * kDiskPlaceMemory + by_file_.size() * kDiskRunMemory; }

 private:
  struct Text {
    const shm::PageKey& parent;
    uint64_t name_space;
    std::span<const uint32_t> tokens;
  };
  struct Order {
    using is_transparent = void;
    static Text text_of(const DiskPlace& place) {
      return {place.parent, place.name_space, std::span(place.page.tokens).first(place.page.n_tokens)};
    }
    static bool less(const Text& a, const Text& b);
    bool operator()(const DiskPlace& a, const DiskPlace& b) const { return less(text_of(a), text_of(b)); }
    bool operator()(const DiskPlace& a, const Text& b) const { return less(text_of(a), b); }
    bool operator()(const Text& a, const DiskPlace& b) const { return less(a, text_of(b)); }
  };
  using Places = std::set<DiskPlace, Order>;

  Places places_;
  std::unordered_map<const DiskFile*, std::vector<Places::const_iterator>> by_file_;
};

/// The files, within the budget.
class DiskFiles {
 public:
  /// Takes the place of a file of that name.
  void add(std::shared_ptr<DiskFile> file);
  void erase(const std::string& name);
  std::shared_ptr<DiskFile> find(const std::string& name) const;
  /// The one used least recently, of equals the deepest in its text; null: there is none.
  std::shared_ptr<DiskFile> oldest() const;
  uint64_t bytes() const { return bytes_; }
  uint64_t memory_bytes() const { return files_.size() * kDiskFileMemory; }
  const std::map<std::string, std::shared_ptr<DiskFile>>& all() const { return files_; }

 private:
  std::map<std::string, std::shared_ptr<DiskFile>> files_;  // by name
  uint64_t bytes_ = 0;
};

}  // namespace ellm::serve
