// Something that is asked of loaded models' caches, or done to them, between two steps. Whoever wants it makes it; the
// engine thread runs it. As an owner's callback it may need memory; without it fails alone.
#pragma once
#include <functional>
#include <list>
#include <string>

namespace ellm::serve {

class PrefixCache;
struct Servable;

struct CacheJob {
  std::string model;  // a loaded model's name; empty: all, by name
  std::function<void(const std::string& name, const Servable& servable, PrefixCache& cache)> run;
  /// Comes once, last; must not block. `why`: the job failed, or null. Told again where it throws std::bad_alloc.
  std::function<void(const char* why)> done;

  // Kept by the engine.
  bool ran = false;
  const char* failure = nullptr;
};
using CacheJobs = std::list<CacheJob>;

}  // namespace ellm::serve
