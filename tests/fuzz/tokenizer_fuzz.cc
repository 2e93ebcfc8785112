// Any bytes as a vocabulary, merges and a text: opening, encoding and decoding neither crash nor break their
// properties.
#include "tests/support/tokenizer_from_bytes.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  ellm::tests::tokenizer_from_bytes({reinterpret_cast<const char*>(data), size});
  return 0;
}
