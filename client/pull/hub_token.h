// Who asks the hub: $HF_TOKEN, or the file that its own tools write when somebody logs in.
#pragma once
#include <string>

namespace ellm::pull {

/// Empty without one. Places as in huggingface_hub: $HF_TOKEN, $HUGGING_FACE_HUB_TOKEN, the files $HF_TOKEN_PATH,
/// $HF_HOME/token, $XDG_CACHE_HOME/huggingface/token, ~/.cache/huggingface/token. HF_HUB_DISABLE_IMPLICIT_TOKEN=1: no
/// file.
std::string hub_token();

}  // namespace ellm::pull
