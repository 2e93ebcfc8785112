// Synthetic models: their types are those that llama-quantize chose for real files, they load, and their weights are
// sane.
#include <gtest/gtest.h>

#include <cmath>
#include <map>

#include "daemon/format/gguf.h"
#include "daemon/model/forward.h"
#include "kernels/blocks.h"
#include "shm/kv_pages.h"
#include "tests/support/real_models.h"
#include "tests/support/temp_dir.h"
#include "tests/support/test_data.h"
#include "tools/bench/mixture.h"
#include "tools/bench/random_weights.h"
#include "tools/bench/synthetic.h"

namespace ellm::bench {
namespace {

using tests::TempDir;

/// The shape of a file, read from its metadata.
Shape shape_of(const format::Gguf& file) {
  Shape s;
  s.name = "copy", s.architecture = file.get_string("general.architecture");
  const auto size = [&](const char* key) { return static_cast<uint32_t>(file.get_uint(s.architecture + "." + key)); };
  s.layers = size("block_count"), s.embedding = size("embedding_length"), s.feed_forward = size("feed_forward_length");
  s.heads = size("attention.head_count"), s.kv_heads = size("attention.head_count_kv"),
  s.head_dim =
      static_cast<uint32_t>(file.find_uint(s.architecture + ".attention.key_length").value_or(s.embedding / s.heads));
  s.context = size("context_length");
  s.vocabulary = static_cast<uint32_t>(file.find_tensor("token_embd.weight")->rows());
  s.tied = file.find_tensor("output.weight") == nullptr;
  return s;
}

void expect_same_tensors(const std::string& path, const std::string& mix) {
  SCOPED_TRACE(path);
  const auto file = format::Gguf::open(path);
  const std::vector<TensorPlan> plans = plan_tensors({shape_of(*file), mix});
  EXPECT_EQ(plans.size(), file->tensors().size());
  for (const TensorPlan& plan : plans) {
    const format::Tensor* t = file->find_tensor(plan.name);
    ASSERT_NE(t, nullptr) << plan.name;
    EXPECT_EQ(t->dims, plan.dims) << plan.name;
    EXPECT_STREQ(t->type->name, kernels::block_shape(plan.type).name) << plan.name;
    EXPECT_EQ(t->data.size(), plan.bytes()) << plan.name;
  }
}

TEST(BenchShape, MixesAreThoseOfLlamaQuantize) {
  const auto data = tests::test_data();
  if (!data) GTEST_SKIP() << "$ELLM_TEST_DATA is not set";
  for (const auto& [file, mix] : std::initializer_list<std::pair<const char*, const char*>>{{"IQ4_XS", "iq4_xs"},
                                                                                            {"Q2_K", "q2_k"},
                                                                                            {"Q3_K_M", "q3_k_m"},
                                                                                            {"Q4_0", "q4_0"},
                                                                                            {"Q4_K_M", "q4_k_m"},
                                                                                            {"Q5_K_M", "q5_k_m"},
                                                                                            {"Q6_K", "q6_k"},
                                                                                            {"Q8_0", "q8_0"}})
    expect_same_tensors(*data + "/synth/llama256-" + file + ".gguf", mix);
}

/// "attn_v.weight Q6_K": how many. Layers are left out: earlier versions of llama-quantize counted them in another
/// order.
std::map<std::string, int> count_types(const std::vector<std::pair<std::string, std::string>>& tensors) {
  std::map<std::string, int> counts;
  for (const auto& [name, type] : tensors) {
    const size_t at = name.starts_with("blk.") ? name.find('.', 4) + 1 : 0;
    ++counts[name.substr(at) + " " + type];
  }
  return counts;
}

TEST(BenchShape, MixesAreThoseOfPublishedModels) {
  bool any = false;
  for (const char* name : {"qwen-0.5b", "qwen-1.5b", "gemma3-270m"}) {
    const std::string path = tests::find_real_model(name);
    if (path.empty()) continue;
    any = true;
    const auto file = format::Gguf::open(path);
    std::vector<std::pair<std::string, std::string>> theirs, ours;
    for (const format::Tensor& t : file->tensors()) theirs.emplace_back(t.name, t.type->name);
    for (const TensorPlan& t : plan_tensors({shape_of(*file), "q4_k_m"}))
      ours.emplace_back(t.name, kernels::block_shape(t.type).name);
    EXPECT_EQ(count_types(ours), count_types(theirs)) << path;
  }
  if (!any) GTEST_SKIP() << "no real model is installed";
}

std::string tiny(const std::string& architecture, const std::string& mix) {
  std::string text =
      R"({"name": "tiny", "architecture": ")" + architecture + R"(", "type": ")" + mix + R"(", "layers": 2,
    "embedding": 256, "feed_forward": 512, "heads": 8, "kv_heads": 2, "head_dim": 32, "vocabulary": 1500, "context": 512)";
  if (architecture.starts_with("gemma")) text += R"(, "window": 64, "tied": true)";
  if (architecture == "phi3") text += R"(, "window": 64)";
  if (architecture == "llama") text += R"(, "llama3_factor": 8, "rope_base": 500000)";
  if (architecture == "qwen3moe") text += R"(, "experts": 4, "experts_used": 2, "expert_feed_forward": 256)";
  return text + "}";
}

std::vector<float> logits(const std::string& path) {
  const auto model = model::Model::load(path, {.lock = false});
  const auto kv = shm::KvPages::create(
      {.geometry = model::page_geometry(model->config(), shm::KvType::f16), .pages = 1, .fingerprint = "x"});
  runtime::WorkerPool pool(runtime::read_topology(), 1, false);
  model::ForwardPass forward(model, model::choose_kernels("auto"), pool, *kv, 32, 1);
  const std::vector<uint32_t> tokens = model->tokenizer()->encode("the quick brown fox");
  const std::vector<shm::PageId> pages = {kv->allocate().value()};
  const model::Chunk chunk{tokens, 0, pages, 1};
  const auto row = forward.step({&chunk, 1});
  return {row.begin(), row.end()};
}

TEST(BenchShape, EveryMixLoadsAndGivesSaneLogits) {
  const TempDir dir;
  for (const char* mix : {"f16", "bf16", "q8_0", "q4_0", "q4_1", "q5_0", "q5_1", "q2_k", "q3_k_m", "q4_k_s", "q4_k_m",
                          "q5_k_s", "q5_k_m", "q6_k", "iq4_nl", "iq4_xs"}) {
    SCOPED_TRACE(mix);
    double squares = 0;
    const std::vector<float> row = logits(synthesise(parse_shape(tiny("llama", mix)), dir.path().string()));
    for (const float x : row) squares += double{x} * x;
    const double deviation =
        std::sqrt(squares / static_cast<double>(row.size()));  // normalised input, weights of 1 / sqrt(n)
    EXPECT_GT(deviation, 0.1);
    EXPECT_LT(deviation, 10);
  }
}

TEST(BenchShape, EveryArchitectureLoads) {
  const TempDir dir;
  for (const char* architecture : {"llama", "qwen2", "qwen3", "qwen3moe", "gemma2", "gemma3", "phi3"}) {
    SCOPED_TRACE(architecture);
    const std::string path = synthesise(parse_shape(tiny(architecture, "q4_k_m")), dir.path().string());
    for (const float x : logits(path)) ASSERT_TRUE(std::isfinite(x));
    const model::ModelConfig config = model::read_config(*format::Gguf::open(path));
    EXPECT_EQ(config.architecture, architecture);
    EXPECT_EQ(config.window, parse_shape(tiny(architecture, "q4_k_m")).shape.window);
  }
}

TEST(BenchShape, WeightsHaveTheWantedDeviation) {
  for (const kernels::WeightType type : kernels::kWeightTypes) {
    if (type == kernels::WeightType::mxfp4) continue;  // in no mix
    const kernels::BlockShape block = kernels::block_shape(type);
    const size_t blocks = (1 << 16) / block.weights;
    std::vector<std::byte> bytes(blocks * block.bytes);
    Random random(7);
    random_weights(type, 0.02f, random, bytes);
    std::vector<float> weights(blocks * block.weights);
    kernels::dequantize(type, bytes.data(), weights.size(), weights.data());
    double sum = 0, squares = 0;
    for (const float w : weights) sum += w, squares += double{w} * w;
    const auto n = static_cast<double>(weights.size());
    EXPECT_NEAR(std::sqrt(squares / n), 0.02, 0.003) << block.name;
    EXPECT_NEAR(sum / n, 0, 0.003) << block.name;
  }
}

TEST(BenchShape, AFileIsWrittenOnce) {
  const TempDir dir;
  const ShapeRequest request = parse_shape(tiny("llama", "q8_0"));
  const std::string path = synthesise(request, dir.path().string());
  const auto when = std::filesystem::last_write_time(path);
  EXPECT_EQ(synthesise(request, dir.path().string()), path);
  EXPECT_EQ(std::filesystem::last_write_time(path), when);
  ShapeRequest other = request;
  other.shape.layers = 3;
  EXPECT_NE(synthesise(other, dir.path().string()), path);
}

TEST(BenchShape, NamedShapesHaveTheParametersOfTheirNames) {
  // As the models' cards say; of those that see pictures the part that reads text.
  const std::map<std::string, double> billions = {
      {"smollm2-135m", 0.1345}, {"smollm2-360m", 0.3618},      {"smollm2-1.7b", 1.7114},
      {"llama-2-7b", 6.7384},   {"llama-3.2-1b", 1.2358},      {"llama-3.2-3b", 3.2127},
      {"llama-3.1-8b", 8.0303}, {"llama-3.1-70b", 70.5537},    {"llama-3.3-70b", 70.5537},
      {"mistral-7b", 7.2480},   {"mistral-nemo-12b", 12.2478}, {"mistral-small-24b", 23.5724},
      {"qwen2.5-0.5b", 0.4940}, {"qwen2.5-1.5b", 1.5437},      {"qwen2.5-3b", 3.0859},
      {"qwen2.5-7b", 7.6156},   {"qwen2.5-14b", 14.7700},      {"qwen2.5-32b", 32.7639},
      {"qwen2.5-72b", 72.7062}, {"qwen3-0.6b", 0.5960},        {"qwen3-1.7b", 1.7206},
      {"qwen3-4b", 4.0225},     {"qwen3-8b", 8.1907},          {"qwen3-14b", 14.7683},
      {"qwen3-32b", 32.7621},   {"qwen3-30b-a3b", 30.5321},    {"qwen3-235b-a22b", 235.0936},
      {"gemma-2-2b", 2.6143},   {"gemma-2-9b", 9.2417},        {"gemma-2-27b", 27.2271},
      {"gemma-3-270m", 0.2681}, {"gemma-3-1b", 0.9999},        {"gemma-3-4b", 3.8803},
      {"gemma-3-12b", 11.7660}, {"gemma-3-27b", 27.0093},      {"phi-3-mini-4k", 3.8211},
      {"phi-4-14b", 14.6595},
  };
  for (const Shape& shape : named_shapes()) {
    double n = 0;
    for (const TensorPlan& t : plan_tensors(parse_shape(shape.name + ":f16"))) n += static_cast<double>(t.elements());
    ASSERT_TRUE(billions.contains(shape.name)) << shape.name;
    EXPECT_NEAR(n * 1e-9, billions.at(shape.name), 0.0001) << shape.name;
  }
  EXPECT_EQ(named_shapes().size(), billions.size());
}

/// llama-quantize takes models of 80 layers for Llama's 70B, whose V has at least 5 bits.
TEST(BenchShape, EightyLayersHaveMoreBitsInV) {
  for (const char* name : {"llama-3.1-70b:q4_k_m", "qwen2.5-72b:q4_k_m"}) {
    std::map<kernels::WeightType, int> types;
    for (const TensorPlan& t : plan_tensors(parse_shape(name)))
      if (t.name.ends_with("attn_v.weight")) ++types[t.type];
    EXPECT_EQ(types,
              (std::map<kernels::WeightType, int>{{kernels::WeightType::q5_k, 40}, {kernels::WeightType::q6_k, 40}}));
  }
}

TEST(BenchShape, RefusalsSayWhatWouldBeRight) {
  const auto message = [](const std::string& text) -> std::string {
    try {
      parse_shape(text);
    } catch (const std::runtime_error& e) {
      return e.what();
    }
    return "accepted";
  };
  EXPECT_NE(message("llama-3.2-1b").find("lacks its weights, as in llama-3.2-1b:q4_k_m"), std::string::npos);
  EXPECT_NE(message("llama-9:q4_0").find("there are smollm2-135m, smollm2-360m"), std::string::npos);
  EXPECT_NE(message(R"({"base": "qwen2.5-7b", "type": "q4_0", "window": 512})").find("a window belongs to"),
            std::string::npos);
  EXPECT_NE(message("llama-3.2-1b:q9").find("there are f16, bf16"), std::string::npos);
  EXPECT_NE(message("{\"layers\": 1").find("not a JSON object"), std::string::npos);
  EXPECT_NE(message(R"({"base": "qwen2.5-7b", "type": "q4_0", "colour": 1})").find("unknown key 'colour'"),
            std::string::npos);
  EXPECT_NE(
      message(R"({"base": "qwen2.5-7b", "type": "q4_0", "layers": "x"})").find("'layers' has an impossible value"),
      std::string::npos);
  EXPECT_NE(message(R"({"base": "qwen2.5-7b", "type": "q4_0", "kv_heads": 5})").find("kv_heads must divide heads"),
            std::string::npos);
  EXPECT_NE(message(R"({"base": "qwen2.5-7b"})").find("\"type\" is missing; there are f16"), std::string::npos);
  EXPECT_NE(message("@/no/such/file").find("cannot read /no/such/file"), std::string::npos);
  EXPECT_EQ(parse_shape(R"({"base": "qwen2.5-7b", "type": "q4_0", "layers": 2})").shape.layers, 2u);
}

}  // namespace
}  // namespace ellm::bench
