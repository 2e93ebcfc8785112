// See key_means.h. The kept file: magic, layout version, identity of the model file, count, floats, checksum.
#include "daemon/model/key_means.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>
#include <xxhash.h>

#include <algorithm>
#include <cstdio>
#include <cstring>
#include <exception>
#include <filesystem>
#include <thread>

#include "daemon/model/forward.h"
#include "daemon/model/model.h"
#include "kernels/rope.h"

namespace ellm::model {
namespace {

constexpr uint32_t kMeasuredTokens = 512;
// Pairs whose mean is taken out token by token: measured (HACKING.md, "Decisions").
constexpr uint32_t kInt8Pairs = 4, kInt4Pairs = 12;
static_assert(kInt4Pairs <= kernels::kMostMeanPairs);
constexpr double kMiddle = (shm::kPageTokens - 1) / 2.0;  // of a page
constexpr uint64_t kFileMagic = 0x314e454d4b4c4c45;       // "ELLKMEN1"

/// What the means are measured on: prose, instructions, code, numbers, other languages. Changing it changes the means.
constexpr const char* kText =
    "The harbour lay quiet in the early morning. Two fishing boats had come back before dawn, and the men were carrying "
    "boxes of mackerel up the stone steps while gulls argued overhead. A woman in a yellow coat asked the price, shook her "
    "head, and walked on toward the bakery, where the first loaves were already cooling in the window.\n\n"
    "To install the package, first update the list of available versions, then run the installer with administrator "
    "rights. If the service does not start, read its log and check that the configuration file names an existing "
    "directory. Each key may appear once; unknown keys are errors.\n\n"
    "def average(values):\n    \"\"\"Return the arithmetic mean of a non-empty list.\"\"\"\n    total = 0.0\n    for v in "
    "values:\n        total += v\n    return total / len(values)\n\nint main(void) {\n  for (int i = 0; i < 10; i++) "
    "printf(\"%d\\n\", i * i);\n  return 0;\n}\n\n"
    "| year | rainfall (mm) | days |\n|------|---------------|------|\n| 2019 | 812.4 | 143 |\n| 2020 | 655.0 | 121 |\n"
    "| 2021 | 931.7 | 160 |\n\n"
    "Question: A train leaves at 14:35 and needs 2 hours and 50 minutes. When does it arrive? Answer: At 17:25, provided "
    "that it is not delayed.\n\n"
    "Im Garten hinter dem Haus steht ein alter Apfelbaum, den mein Großvater gepflanzt hat. La bibliothèque ferme à "
    "dix-huit heures, sauf le samedi. El tren de la mañana llegó con retraso. 春天来了,花园里的花都开了。今日は雨が降っています。\n\n"
    "{\"name\": \"sensor-7\", \"active\": true, \"readings\": [20.5, 20.7, 21.0], \"unit\": \"C\"}\n"
    "The committee agreed that the report should be published, although three members asked for their objections to be "
    "recorded: the sample was small, the method was new, and nobody had repeated the experiment.";

/// The file that the model was read from, so that other contents do not pass for it.
struct Identity {
  uint64_t device, inode, size, modified_ns, changed_ns;
};
Identity identity_of(const Model& model) {
  struct stat s{};
  if (::stat(model.path().c_str(), &s) != 0) return {};
  const auto ns = [](const timespec& t) {
    return static_cast<uint64_t>(t.tv_sec) * 1000000000u + static_cast<uint64_t>(t.tv_nsec);
  };
  return {s.st_dev, s.st_ino, static_cast<uint64_t>(s.st_size), ns(s.st_mtim), ns(s.st_ctim)};
}

struct FileHead {
  uint64_t magic, floats, digest;
  Identity identity;
};

std::string file_name(const std::string& directory, const Identity& identity) {
  char name[48];
  std::snprintf(name, sizeof name, "/key-mean-%016llx",
                static_cast<unsigned long long>(XXH3_64bits(&identity, sizeof identity)));
  return directory + name;
}

size_t mean_floats(const Model& model) {
  const ModelConfig& c = model.config();
  return size_t{c.layers} * c.kv_heads * c.head_dim;
}

std::vector<float> measure(const std::shared_ptr<const Model>& model, uint32_t threads) {
  const ModelConfig& c = model->config();
  std::vector<uint32_t> tokens = model->tokenizer()->encode(kText, {});
  tokens.resize(std::min<size_t>({tokens.size(), kMeasuredTokens, c.context}));
  if (tokens.empty()) return {};
  runtime::WorkerPool pool(runtime::read_topology(), threads);
  const auto rows = static_cast<uint32_t>(tokens.size());
  const uint32_t pages = (rows + shm::kPageTokens - 1) / shm::kPageTokens;
  const auto kv =
      shm::KvPages::create({.geometry = page_geometry(c, shm::KvType::f16), .pages = pages, .fingerprint = "key mean"});
  ForwardPass forward(model, choose_kernels("auto"), pool, *kv, rows, 0);
  std::vector<shm::PageId> ids;
  while (ids.size() < pages) {
    const auto page = kv->allocate();
    if (!page) throw LoadError(model->path() + ": no memory to measure the mean of K");
    ids.push_back(*page);
  }
  std::vector<float> keys(size_t{c.layers} * rows * c.kv_heads * c.head_dim);
  forward.record_keys(keys.data());
  const Chunk chunk{tokens, 0, ids, 0};
  forward.step({&chunk, 1});
  const size_t width = size_t{c.kv_heads} * c.head_dim;
  std::vector<float> means(c.layers * width);
  for (size_t layer = 0; layer < c.layers; ++layer) {
    for (size_t d = 0; d < width; ++d) {
      double sum = 0;
      for (size_t r = 0; r < rows; ++r) sum += keys[(layer * rows + r) * width + d];
      means[layer * width + d] = static_cast<float>(sum / rows);
    }
  }
  return means;
}

}  // namespace

std::vector<float> key_biases(const Model& model) {
  std::vector<float> means;
  const size_t width = size_t{model.config().kv_heads} * model.config().head_dim;
  for (const Layer& layer : model.weights().layers) {
    if (layer.k_bias == nullptr || layer.k_norm != nullptr) return {};
    means.insert(means.end(), layer.k_bias, layer.k_bias + width);
  }
  return means;
}

std::vector<float> measure_key_means(const std::shared_ptr<const Model>& model, uint32_t threads) {
  std::vector<float> means;
  std::exception_ptr failure;
  std::thread([&] {  // a thread of its own: the worker pool pins the one that makes it
    try {
      means = measure(model, threads);
    } catch (...) {
      failure = std::current_exception();
    }
  })
      .join();
  if (failure) std::rethrow_exception(failure);
  return means;
}

std::vector<float> read_key_means(const std::string& directory, const Model& model) {
  const Identity identity = identity_of(model);
  FILE* file = std::fopen(file_name(directory, identity).c_str(), "rbe");
  if (file == nullptr) return {};
  FileHead head{};
  std::vector<float> means(mean_floats(model));
  const bool whole = std::fread(&head, sizeof head, 1, file) == 1 && head.magic == kFileMagic &&
                     head.floats == means.size() && std::memcmp(&head.identity, &identity, sizeof identity) == 0 &&
                     std::fread(means.data(), sizeof(float), means.size(), file) == means.size() &&
                     std::fgetc(file) == EOF;
  std::fclose(file);
  if (!whole || key_means_digest(means) != head.digest) return {};
  return means;
}

bool write_key_means(const std::string& directory, const Model& model, const std::vector<float>& means) {
  std::error_code error;
  std::filesystem::create_directories(directory, error);
  const Identity identity = identity_of(model);
  const std::string name = file_name(directory, identity), temporary = name + "." + std::to_string(::getpid());
  FILE* file = std::fopen(temporary.c_str(), "wbe");
  if (file == nullptr) return false;
  const FileHead head{kFileMagic, means.size(), key_means_digest(means), identity};
  bool good = std::fwrite(&head, sizeof head, 1, file) == 1 &&
              std::fwrite(means.data(), sizeof(float), means.size(), file) == means.size();
  good = std::fflush(file) == 0 && ::fsync(::fileno(file)) == 0 && good;
  good = std::fclose(file) == 0 && good;
  if (good) good = std::rename(temporary.c_str(), name.c_str()) == 0;
  if (!good) ::unlink(temporary.c_str());
  return good;
}

uint64_t key_means_digest(const std::vector<float>& means) {
  return means.empty() ? 0 : XXH3_64bits(means.data(), means.size() * sizeof(float));
}

KeyMeanTable::KeyMeanTable(const Model& model, shm::KvType type, uint32_t pages) : kv_heads_(model.config().kv_heads) {
  const ModelConfig& c = model.config();
  const std::vector<float>& means = model.key_means();
  if (means.empty() || (type != shm::KvType::int8 && type != shm::KvType::int4)) return;
  // A measured mean is that of another text: its fast pairs are not worth the products (measured on smollm2).
  const uint32_t pairs = key_biases(model).empty() ? 0 : type == shm::KvType::int4 ? kInt4Pairs : kInt8Pairs;
  angles_ = angles_of(model.rope(), pages);
  if (model.window_rope()) window_angles_ = angles_of(*model.window_rope(), pages);
  views_.resize(size_t{c.layers} * kv_heads_);
  for (uint32_t layer = 0; layer < c.layers; ++layer) {
    const bool own = model.window_rope() && c.windowed(layer);
    for (uint32_t head = 0; head < kv_heads_; ++head) {
      const size_t i = size_t{layer} * kv_heads_ + head;
      fill(views_[i], &means[i * c.head_dim], own ? *model.window_rope() : model.rope(), own ? window_angles_ : angles_,
           c.rope.neox, c.head_dim, pairs);
    }
  }
}

/// Of a pair that turns by f a token, the average over a page is sin(16 f) / (32 sin(f / 2)) of what stands in its
/// middle.
KeyMeanTable::Angles KeyMeanTable::angles_of(const RopeTable& rope, uint32_t pages) {
  const auto half = static_cast<uint32_t>(rope.frequency.size());
  const size_t whole = kernels::round_up(pages, kernels::kSegmentPages);
  Angles a{std::vector<float>(whole * half), std::vector<float>(whole * half), {}};
  std::vector<float> cos(half), sin(half);
  for (uint32_t page = 0; page < whole; ++page) {
    kernels::rope_angles(page * double{shm::kPageTokens} + kMiddle, rope.frequency.data(), half, rope.magnitude,
                         cos.data(), sin.data());
    for (uint32_t i = 0; i < half; ++i) {
      const size_t to =
          (size_t{page / kernels::kSegmentPages} * half + i) * kernels::kSegmentPages + page % kernels::kSegmentPages;
      a.cos[to] = cos[i];
      a.sin[to] = sin[i];
    }
  }
  for (const double f : rope.frequency) {
    const double turned = kernels::sin_cos(f / 2).sin;
    a.part.push_back(turned == 0 ? 1 : kernels::sin_cos(f * (shm::kPageTokens / 2)).sin / (shm::kPageTokens * turned));
  }
  return a;
}

/// The pairs that would keep most of their mean get a table of turns (of equals the lower).
void KeyMeanTable::fill(View& to, const float* mean, const RopeTable& rope, const Angles& angles, bool neox,
                        uint32_t head_dim, uint32_t pairs) {
  const auto half = static_cast<uint32_t>(rope.frequency.size());
  const auto dims = [&](uint32_t i) { return neox ? std::pair{i, i + half} : std::pair{2 * i, 2 * i + 1}; };
  to.part.assign(head_dim, 1.0f);
  std::vector<std::pair<double, uint32_t>> kept;
  for (uint32_t i = 0; i < half; ++i) {
    const auto [x, y] = dims(i);
    to.part[x] = to.part[y] = static_cast<float>(angles.part[i]);
    const double square = double{mean[x]} * mean[x] + double{mean[y]} * mean[y];
    kept.emplace_back(-square * (1 - angles.part[i] * angles.part[i]), i);
  }
  std::ranges::sort(kept);
  pairs = std::min(pairs, half);
  for (uint32_t p = 0; p < pairs; ++p) {
    const uint32_t i = kept[p].second;
    const auto [x, y] = dims(i);
    to.part[x] = to.part[y] = 0;
    to.pair_dims.insert(to.pair_dims.end(), {x, y});
    float cos[shm::kPageTokens], sin[shm::kPageTokens];
    for (uint32_t t = 0; t < shm::kPageTokens; ++t)
      kernels::rope_angles(t - kMiddle, &rope.frequency[i], 1, 1, &cos[t], &sin[t]);
    to.turns.insert(to.turns.end(), cos, cos + shm::kPageTokens);
    to.turns.insert(to.turns.end(), sin, sin + shm::kPageTokens);
  }
  to.view = {mean, to.part.data(), angles.cos.data(),   angles.sin.data(), half,
             neox, pairs,          to.pair_dims.data(), to.turns.data()};
}

}  // namespace ellm::model
