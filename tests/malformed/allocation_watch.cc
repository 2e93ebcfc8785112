// Replaces operator new in the whole program.
#include "tests/malformed/allocation_watch.h"

#include <atomic>
#include <cstdlib>
#include <new>

namespace {

std::atomic<size_t> largest{0};

void* watched(size_t bytes) noexcept {
  size_t seen = largest.load();
  while (bytes > seen && !largest.compare_exchange_weak(seen, bytes)) {
  }
  return std::malloc(bytes ? bytes : 1);
}

void* or_throw(void* p) {
  if (!p) throw std::bad_alloc();
  return p;
}

}  // namespace

namespace ellm::tests {

void reset_largest_allocation() { largest = 0; }
size_t largest_allocation() { return largest; }

}  // namespace ellm::tests

void* operator new(size_t bytes) { return or_throw(watched(bytes)); }
void* operator new[](size_t bytes) { return or_throw(watched(bytes)); }
void* operator new(size_t bytes, const std::nothrow_t&) noexcept { return watched(bytes); }
void* operator new[](size_t bytes, const std::nothrow_t&) noexcept { return watched(bytes); }
void operator delete(void* p) noexcept { std::free(p); }
void operator delete[](void* p) noexcept { std::free(p); }
void operator delete(void* p, const std::nothrow_t&) noexcept { std::free(p); }
void operator delete[](void* p, const std::nothrow_t&) noexcept { std::free(p); }
void operator delete(void* p, size_t) noexcept { std::free(p); }
void operator delete[](void* p, size_t) noexcept { std::free(p); }
