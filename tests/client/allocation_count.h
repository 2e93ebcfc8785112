// Bytes that this thread has asked operator new for; link allocation_count.cc.
#pragma once
#include <cstddef>

size_t allocated_bytes();
