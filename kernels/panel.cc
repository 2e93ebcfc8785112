// Repacking GGUF rows into panels and back. Baseline code; any thread.
#include "kernels/panel.h"
