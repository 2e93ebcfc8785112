// The directory of the disk tier, this process's alone: calls of the file system, made by the tier's threads. Nothing
// is remembered here; what is in which file is disk_index.h's.
#pragma once
#include <functional>
#include <memory>
#include <string>

#include "shm/descriptor.h"
#include "shm/disk_file.h"

namespace ellm::serve {

class DiskDirectory {
 public:
  /// Made if need be; its parent, too. Null: not to be had, `why` says why.
  static std::unique_ptr<const DiskDirectory> open(const std::string& path, std::string& why);
  ~DiskDirectory();
  DiskDirectory(const DiskDirectory&) = delete;
  DiskDirectory& operator=(const DiskDirectory&) = delete;

  struct Entry {
    std::string name;
    uint64_t bytes = 0, name_space = 0;
    int64_t last_use_s = 0;
  };
  /// All files of prefixes, whoever's; removes what a crash left unfinished.
  void list(const std::function<void(Entry)>& found) const;
  /// As shm::read_disk_header; `foreign`: it has been renamed.
  shm::DiskFault look_at(const std::string& name, const shm::DiskFormat& format, shm::DiskRun& run,
                         uint64_t& payload_offset) const;
  /// To read it.
  shm::Descriptor open_file(const std::string& name) const;
  void remove(const std::string& name) const;
  /// A file's time of use is its mtime.
  void store_use(const std::string& name, int64_t last_use_s) const;
  /// For DiskFileWriter.
  int fd() const { return fd_; }

 private:
  DiskDirectory(int fd, int lock) : fd_(fd), lock_(lock) {}

  const int fd_, lock_;
};

}  // namespace ellm::serve
