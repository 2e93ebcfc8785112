// Any bytes as a model file: header, configuration, tokenizer and chat template open it or refuse it. The bytes are
// followed by zeros, so that small inputs can have tensors: the first two bytes say how many.
#include <cstring>

#include "tests/support/memory_file.h"
#include "tests/support/open_everything.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  static ellm::tests::MemoryFile file;
  if (size < 2) return 0;
  uint16_t kilobytes = 0;
  std::memcpy(&kilobytes, data, sizeof kilobytes);
  const std::string_view bytes(reinterpret_cast<const char*>(data) + 2, size - 2);
  file.fill(bytes, bytes.size() + 1024u * kilobytes);
  try {
    ellm::tests::open_everything(file.path());
  } catch (const ellm::format::FormatError&) {
  }
  return 0;
}
