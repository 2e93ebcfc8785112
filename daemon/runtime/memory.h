// Pinned memory: anonymous regions with a NUMA policy, huge pages where there are any, locked where the limits allow.
#pragma once
#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>

namespace ellm::runtime {

struct MemoryPolicy {
  enum class Kind { local, interleave, bind } kind = Kind::local;
  int node = 0;  // for bind
};
/// "local", "interleave", "bind:N". Absent: not one of these, or a node that this machine lacks.
std::optional<MemoryPolicy> parse_memory_policy(const std::string& text);

/// Applies the policy to memory that was not touched yet, private or shared. Returns an errno or 0.
int place_memory(void* data, size_t bytes, MemoryPolicy policy);
/// mlock. On failure returns what limits it and how to raise it, for one warning line.
std::optional<std::string> lock_memory(const void* data, size_t bytes);

class Region {
 public:
  /// Maps `bytes` (zeroed, 64-byte aligned at least, excluded from core dumps; resident once touched). 0 bytes: an
  /// empty region. Throws std::bad_alloc with no effect.
  static Region map(size_t bytes, MemoryPolicy policy);
  Region() = default;
  Region(Region&& other) noexcept;
  Region& operator=(Region&& other) noexcept;
  ~Region();

  std::byte* data() const { return data_; }
  size_t size() const { return size_; }
  /// The errno for which the kernel refused the policy (container runtimes forbid mbind), 0 if it is in force. The
  /// memory is good in either case, its place is then the kernel's choice.
  int policy_error() const { return policy_error_; }

 private:
  std::byte* data_ = nullptr;
  size_t size_ = 0;
  int policy_error_ = 0;
};

/// Bytes that a new allocation can take without swapping: MemAvailable within the cgroup's limit.
size_t available_memory_bytes(const std::string& root = "/");

}  // namespace ellm::runtime
