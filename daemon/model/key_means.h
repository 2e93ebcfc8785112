// The mean of K before RoPE, a constant of the model per layer and KV head: what is taken out of K before int8 and int4
// round it (kernels/key_mean.h). The bias where every layer has one, else measured once on a fixed text and kept in a
// file.
#pragma once
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "daemon/model/rope.h"
#include "kernels/key_mean.h"
#include "shm/geometry.h"

namespace ellm::model {

class Model;

/// Biases as means, (layers, kv_heads * head_dim); empty where a layer has none or K is normalised behind it.
std::vector<float> key_biases(const Model& model);

/// The mean over a fixed text by the exact path with f16 KV: equal on every machine. Takes one prefill of the text, on
/// `threads` threads of its own.
std::vector<float> measure_key_means(const std::shared_ptr<const Model>& model, uint32_t threads);

/// Means that an earlier process left in `directory` for this very file (device, inode, size, times); empty where there
/// are none, or the file is damaged.
std::vector<float> read_key_means(const std::string& directory, const Model& model);
/// False: could not be written (then the next load measures again).
bool write_key_means(const std::string& directory, const Model& model, const std::vector<float>& means);

/// XXH3-64 of the means; part of what a KV page's bytes depend on.
uint64_t key_means_digest(const std::vector<float>& means);

/// What the kernels take of it, for K of `type`, up to `pages` pages of a sequence. Immutable; any thread.
class KeyMeanTable {
 public:
  KeyMeanTable(const Model& model, shm::KvType type, uint32_t pages);
  KeyMeanTable(const KeyMeanTable&) = delete;
  /// Null where the model has no means, or K is stored whole.
  const kernels::KeyMean* find(uint32_t layer, uint32_t kv_head) const {
    return views_.empty() ? nullptr : &views_[size_t{layer} * kv_heads_ + kv_head].view;
  }

 private:
  struct Angles {
    std::vector<float> cos, sin;  // of the pages' middles, as kernels::KeyMean has them
    std::vector<double> part;     // (half): of what turns around a page's middle, the average over the page
  };
  struct View {
    kernels::KeyMean view;
    std::vector<float> part, turns;
    std::vector<uint32_t> pair_dims;
  };
  static Angles angles_of(const RopeTable& rope, uint32_t pages);
  static void fill(View& to, const float* mean, const RopeTable& rope, const Angles& angles, bool neox,
                   uint32_t head_dim, uint32_t pairs);

  uint32_t kv_heads_;
  Angles angles_, window_angles_;
  std::vector<View> views_;  // (layer, kv head)
};

}  // namespace ellm::model
