// What Prometheus is told: requests are counted as they end, the rest is asked of engine and models at the scrape.
// Labels are names of loaded models and words of the protocol, never users or texts. I/O thread.
#pragma once
#include <memory>
#include <string>

#include "client/messages.h"
#include "daemon/serve/engine.h"

namespace ellm::daemon {

struct Services;

class Metrics {
 public:
  Metrics();
  ~Metrics();

  /// A request that the engine had has ended. `kind`: generate | chat | score.
  void request_ended(const std::string& model, const std::string& kind, client::FinishReason reason,
                     const serve::RequestStats& stats);
  /// A client was told so.
  void error(client::ErrorCode code);

  /// Everything, in Prometheus' text format 0.0.4.
  std::string text(const Services& services) const;

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace ellm::daemon
