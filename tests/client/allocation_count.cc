// Replaces the program's operator new by one that counts.
#include "tests/client/allocation_count.h"

#include <cstdlib>
#include <new>

static thread_local size_t counted_bytes = 0;
size_t allocated_bytes() { return counted_bytes; }

void* operator new(size_t size) {
  counted_bytes += size;
  if (void* memory = std::malloc(size ? size : 1)) return memory;
  throw std::bad_alloc();
}
void operator delete(void* memory) noexcept { std::free(memory); }
void operator delete(void* memory, size_t) noexcept { std::free(memory); }
