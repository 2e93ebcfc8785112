// The file behind a KV segment, and its mapping: made anew, or taken over from the process that had it before. What
// stands in it is page_record.h's affair.
//   anonymous   a memfd; outlives this process in somebody else's hands only (systemd's file-descriptor store)
//   named       an object in /dev/shm with mode 0600; outlives this process by itself
// A named segment belongs to one process at a time: whoever has it holds a lock on its file, which the kernel gives
// back when the process ends, however it ends. Errors are std::system_error.
#pragma once
#include <cstddef>
#include <optional>
#include <string>
#include <utility>
#include <vector>

namespace ellm::shm {

/// Names of our objects in /dev/shm begin so; the user's number follows.
inline constexpr const char* kSegmentPrefix = "ellm-kv.";

class Segment {
 public:
  /// `name` empty: anonymous. A named object must not exist.
  static Segment make(const std::string& name, size_t bytes);
  /// The named object, locked and mapped; absent where there is none. EBUSY: another process has it. EPERM: it belongs
  /// to another user, or others may open it.
  static std::optional<Segment> open(const std::string& name);
  /// A memfd that this process was given; it becomes the segment's.
  static Segment adopt(int fd);
  /// The object goes with its last user.
  static void remove(const std::string& name);

  Segment(Segment&& other) noexcept;
  Segment& operator=(Segment&&) = delete;
  ~Segment();

  std::byte* data() const { return data_; }
  size_t bytes() const { return bytes_; }
  int fd() const { return fd_; }

  /// Puts memory behind a range. Returns an errno or 0.
  int populate(size_t offset, size_t bytes) const;
  /// The same in huge pages where the kernel has any, which may reach over the range's ends.
  int populate_huge_pages(size_t offset, size_t bytes);
  /// Whether a range has memory.
  bool has_memory(size_t offset, size_t bytes) const;
  /// What of [offset, end) has memory: ranges (first, end) in order.
  std::vector<std::pair<size_t, size_t>> memory(size_t offset, size_t end) const;

 private:
  explicit Segment(int fd) : fd_(fd) {}
  void map(size_t bytes);

  int fd_;
  std::byte* data_ = nullptr;
  size_t bytes_ = 0;
  bool no_huge_pages_ = false;
};

}  // namespace ellm::shm
