// Memory that ends at a page nobody may touch: one byte read or written too far is a fault.
#pragma once
#include <sys/mman.h>
#include <unistd.h>

#include <cstddef>
#include <cstdint>
#include <stdexcept>

namespace ellm::tests {

template <class T>
class Guarded {
 public:
  explicit Guarded(size_t n) : n_(n) {
    const size_t page = static_cast<size_t>(sysconf(_SC_PAGESIZE)), bytes = (n * sizeof(T) + page - 1) / page * page;
    length_ = bytes + page;
    void* p = mmap(nullptr, length_, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (p == MAP_FAILED || mprotect(static_cast<char*>(p) + bytes, page, PROT_NONE) != 0)
      throw std::runtime_error("mmap");
    base_ = p;
    data_ = reinterpret_cast<T*>(static_cast<char*>(p) + bytes - n * sizeof(T));
  }
  Guarded(const Guarded&) = delete;
  Guarded& operator=(const Guarded&) = delete;
  ~Guarded() { munmap(base_, length_); }

  T* data() const { return data_; }
  size_t size() const { return n_; }
  T& operator[](size_t i) const { return data_[i]; }
  T* begin() const { return data_; }
  T* end() const { return data_ + n_; }

 private:
  void* base_;
  size_t length_, n_;
  T* data_;
};

}  // namespace ellm::tests
