// GGUF blocks to floats and back.
#include "kernels/blocks.h"
