#include "tests/support/generated_model.h"

#include "tests/support/texts.h"

namespace ellm::tests {

std::string float64_pass(const std::string& arguments) {
  return output_of("/usr/bin/python3 '" ELLM_SOURCE_DIR "/tests/model/float64_pass.py' " + arguments);
}

}  // namespace ellm::tests
