// The daemon's totals in a file that every client may map: read without a round trip, as often as one likes, while the
// daemon is busy or stuck. StatusReply::stats_page says where it is (`ellm status --json`).
//
//   offset 0   magic "eLLMstat", then u64 layout (1), u64 sequence, u64 bytes of the totals that follow
//   offset 32  the totals: Totals' members in order, 8 bytes each, little-endian
// The daemon alone writes: sequence odd, the totals, sequence even (a sequence lock). A reader copies the totals
// between two equal even sequences, else tries again. Members are only ever appended; a daemon that has fewer says so
// in `bytes`, and the others read as 0.
#pragma once
#include <atomic>
#include <cstdint>
#include <optional>
#include <string>

namespace ellm::client {

/// Counters since the daemon's start, and how things stand. Times are CLOCK_MONOTONIC, in seconds.
struct Totals {
  uint64_t pid = 0;
  double start_s = 0, updated_s = 0;
  uint64_t threads = 0, connections = 0, models = 0;
  uint64_t running = 0, queued = 0;  // requests
  uint64_t served = 0, steps = 0;
  uint64_t prompt_tokens = 0, cached_tokens = 0, completion_tokens = 0;
  uint64_t kv_tokens = 0, kv_free_tokens = 0, kv_cached_tokens = 0;  // of all models: room, free, cached and unused
  uint64_t weight_bytes = 0;
  uint64_t prefill_rows = 0, decode_rows = 0;  // tokens that went through a model: of prompts, of answers
  double step_ms = 0;                          // mean of about the last 16 steps
  uint64_t preemptions = 0;                    // times that a running request gave way to another
};

/// The bytes of the page.
struct StatsPageData {
  static constexpr uint64_t kMagic = 0x74617473'4d4c4c65;  // "eLLMstat"
  static constexpr uint64_t kLayout = 1;
  static constexpr size_t kWords = sizeof(Totals) / 8;
  uint64_t magic, layout;
  std::atomic<uint64_t> sequence;
  uint64_t bytes;
  std::atomic<uint64_t> words[kWords];
};
static_assert(sizeof(Totals) % 8 == 0 && sizeof(StatsPageData) == 32 + sizeof(Totals));
static_assert(std::atomic<uint64_t>::is_always_lock_free && sizeof(std::atomic<uint64_t>) == 8);

/// A mapped page. Any thread.
class StatsPage {
 public:
  /// Absent where there is none, or none of this layout.
  static std::optional<StatsPage> open(const std::string& path);
  StatsPage(StatsPage&& other) noexcept;
  StatsPage& operator=(StatsPage&& other) noexcept;
  ~StatsPage();

  /// Absent where the daemon wrote at every one of a bounded number of tries, or ended in the midst of writing: ask
  /// `status` then.
  std::optional<Totals> read() const;

 private:
  StatsPage() = default;
  const StatsPageData* data_ = nullptr;
  size_t mapped_ = 0;
};

}  // namespace ellm::client
