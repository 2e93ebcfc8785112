// The test program's operator new remembers its largest request, so that a test can hold it against the size of a file.
#pragma once
#include <cstddef>

namespace ellm::tests {

void reset_largest_allocation();
size_t largest_allocation();

}  // namespace ellm::tests
