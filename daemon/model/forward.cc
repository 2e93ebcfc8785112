// The forward pass. Every worker runs the same function over the whole step; between phases they meet at barriers,
// within a phase they share rows, panels or heads. What a worker gets never changes what is computed (HACKING.md,
// fixed-order rule).
//
// A layer:  norm+pack | q k v | rope, store K V | attention+pack | output, residual | norm+pack | gate up, silu, pack | down
// With one or two rows the norms are done by every worker for itself, and rope, store and attention are one phase.
// Where an architecture normalises what attention and feed-forward network give, both leave it in `branch` and a phase
// adds it.
#include "daemon/model/forward.h"

#include <algorithm>
#include <array>
#include <cassert>

#include "daemon/model/attention_plan.h"
#include "daemon/model/experts.h"
#include "daemon/model/key_means.h"
#include "daemon/model/panel_share.h"
#include "daemon/model/step_buffers.h"

namespace ellm::model {
namespace {

using kernels::Activations;
using kernels::KernelSet;
using kernels::PanelMatrix;
using runtime::Worker;

/// One token row of the step.
struct Row {
  uint32_t token, position, chunk;
};

/// Which forms of a packed input a set of matrices reads.
struct Forms {
  bool q8 = false, f32 = false;
  void add(const PanelMatrix& m) { (kernels::is_quantised(m.type) ? q8 : f32) = true; }
};

struct LayerForms {
  Forms attention, output, feed_forward, down;
};

}  // namespace

struct ForwardPass::Impl {
  Impl(std::shared_ptr<const Model> model_in, const KernelSet& kernels_in, runtime::WorkerPool& pool_in,
       shm::KvPages& kv_in, uint32_t max_rows_in, uint32_t max_logits_in)
      : model(std::move(model_in)), k(kernels_in), pool(pool_in), kv(kv_in), max_rows(max_rows_in),
        max_logits(std::min(max_logits_in, max_rows_in)), c(model->config()), w(model->weights()),
        max_context(std::min<uint64_t>(c.context, uint64_t{kv.total_pages()} * shm::kPageTokens)),
        b(c, max_context, max_rows, max_logits, pool.size()), q_dim(c.heads * c.head_dim),
        kv_dim(c.kv_heads * c.head_dim), group(c.heads / c.kv_heads),
        key_means(*model, kv.geometry().k_type, (max_context + shm::kPageTokens - 1) / shm::kPageTokens),
        plan(c, kv.geometry(), max_context, max_rows, pool.size(), b.partial_results), stacks(pool.size()),
        block_pointers(pool.size()) {
    for (const Layer& l : w.layers) {
      LayerForms f;
      for (const PanelMatrix* m : {&l.q, &l.k, &l.v}) f.attention.add(*m);
      f.output.add(l.attention_output);
      for (const PanelMatrix* m : {&l.gate, &l.up}) f.feed_forward.add(*m);
      f.down.add(l.down);
      forms.push_back(f);
    }
    output_form.add(w.output);
    if (c.experts != 0) experts = std::make_unique<ExpertsPass>(c, k, max_rows);
    const uint32_t pages = (max_context + shm::kPageTokens - 1) / shm::kPageTokens;
    for (auto& pointers : block_pointers)
      pointers.resize(2 * std::max(pages, AttentionPlan::kStackRows * kernels::kSegmentPages));
    // A step allocates nothing, so it cannot fail for want of memory.
    rows.reserve(max_rows);
    chunk_row.reserve(max_rows);
    logit_rows.reserve(max_logits);
  }

  std::shared_ptr<const Model> model;
  const KernelSet& k;
  runtime::WorkerPool& pool;
  shm::KvPages& kv;
  const uint32_t max_rows, max_logits;
  const ModelConfig& c;
  const Weights& w;
  const uint32_t max_context;
  StepBuffers b;
  const uint32_t q_dim, kv_dim, group;
  const KeyMeanTable key_means;
  float* recorded_keys = nullptr;
  std::vector<LayerForms> forms;
  Forms output_form;
  std::unique_ptr<ExpertsPass> experts;  // of a mixture
  AttentionPlan plan;
  std::vector<std::array<kernels::StackedRow, AttentionPlan::kStackRows>> stacks;  // per worker
  std::vector<std::vector<const std::byte*>> block_pointers;  // per worker: K blocks, then V blocks

  // the step at hand
  std::span<const Chunk> chunks;
  std::vector<Row> rows;
  std::vector<uint32_t> chunk_row;  // first row of each chunk
  std::vector<uint32_t> logit_rows;
  bool single_rows = false;  // every chunk is one row: rope, store and attention need no barrier between them

  void prepare(std::span<const Chunk> step);
  void run(Worker& worker);
  void embed(Worker& worker);
  void layer(Worker& worker, uint32_t index);
  void project(Worker& worker, const PanelMatrix& m, std::span<const Activations> inputs, const float* bias,
               const float* post_norm);
  void rope_head_group(uint32_t row, uint32_t kv_head, uint32_t layer_index);
  void attention(Worker& worker, uint32_t layer_index);
  void attend(Worker& worker, const AttentionItem& item, uint32_t layer_index);
  void attend_stack(Worker& worker, const AttentionItem& item, uint32_t layer_index);
  void merge(Worker& worker, const AttentionItem& item, uint32_t layer_index);
  void pack_attended(const AttentionItem& item, uint32_t layer_index);
  void pack_attended_row(uint32_t row, uint32_t first_block, uint32_t last_block, Forms form);
  void feed_forward(Worker& worker, uint32_t index);
  void output_head(Worker& worker);

  Activations norm_and_pack(Worker& worker, const float* weight, Forms form, std::span<const uint32_t> which,
                            uint32_t n);
  kernels::AttentionArgs attention_args(Worker& worker, const AttentionItem& item, uint32_t layer_index);
  float* partials_of(uint32_t chunk, uint32_t kv_head) const;
  void pack(const Activations& dst, uint32_t row, const float* x, uint32_t first_block, uint32_t last_block,
            Forms form) const {
    if (form.q8) k.pack_q8(dst, row, x, first_block, last_block);
    if (form.f32) k.pack_f32(dst, row, x, first_block, last_block);
  }
  uint32_t n() const { return static_cast<uint32_t>(rows.size()); }
  bool head_groups_are_blocks() const { return group * c.head_dim % kernels::kBlock == 0; }
};

// ---- the plan of a step: engine thread, before the workers start --------------------------------------------------

void ForwardPass::Impl::prepare(std::span<const Chunk> step) {
  chunks = step;
  rows.clear();
  chunk_row.clear();
  logit_rows.clear();
  single_rows = true;
  for (uint32_t i = 0; i < step.size(); ++i) {
    const Chunk& chunk = step[i];
    const auto count = static_cast<uint32_t>(chunk.tokens.size());
    assert(count > 0 && chunk.logits <= count);
    assert(chunk.pages.size() * shm::kPageTokens >= chunk.first_position + count);
    single_rows &= count == 1;
    chunk_row.push_back(n());
    for (uint32_t t = 0; t < count; ++t) {
      if (t >= count - chunk.logits) logit_rows.push_back(n());
      rows.push_back({chunk.tokens[t], chunk.first_position + t, i});
    }
  }
  assert(n() <= max_rows && logit_rows.size() <= max_logits);
  plan.make(step);
}

// ---- what the workers run -----------------------------------------------------------------------------------------

void ForwardPass::Impl::run(Worker& worker) {
  embed(worker);
  for (uint32_t i = 0; i < c.layers; ++i) layer(worker, i);
  output_head(worker);
}

void ForwardPass::Impl::embed(Worker& worker) {
  const auto [first, last] = worker.share(n());
  for (uint32_t r = first; r < last; ++r) {
    float* x = b.residual[r];
    kernels::dequantize_row(w.token_embedding, rows[r].token, x);
    if (c.embedding_scale != 1)
      for (uint32_t i = 0; i < c.embedding; ++i) x[i] *= c.embedding_scale;
    const auto angles = [&](const RopeTable& rope, float* cos, float* sin) {
      const auto half = static_cast<uint32_t>(rope.frequency.size());
      kernels::rope_angles(rows[r].position, rope.frequency.data(), half, rope.magnitude, cos + size_t{r} * half,
                           sin + size_t{r} * half);
    };
    angles(model->rope(), b.cos, b.sin);
    if (model->window_rope()) angles(*model->window_rope(), b.window_cos, b.window_sin);
  }
  worker.barrier();
}

/// RMS norm of the rows `which` (null data: rows 0 … n-1), packed as the input of a matrix product. With few rows every worker
/// packs its own copy; otherwise they share the work and meet. Rows of one tile lie side by side in the packed arrays'
/// cache lines: of a single tile each worker packs some columns of all rows (and computes all norms), of more it gets
/// whole tiles.
Activations ForwardPass::Impl::norm_and_pack(Worker& worker, const float* weight, Forms form,
                                             std::span<const uint32_t> which, uint32_t count) {
  const bool alone = count <= PackedInput::kPrivateRows, one_tile = count <= kernels::kTokenTile;
  const Activations packed = alone ? b.normed.of_worker(worker.index(), count) : b.normed.shared(count);
  const uint32_t granule = count < kernels::kTokenTile * worker.count() ? 1 : kernels::kTokenTile;
  const auto [first, last] = one_tile ? std::pair{0u, count} : worker.share(count, granule);
  const auto [first_block, last_block] =
      one_tile && !alone ? worker.share(packed.blocks(), 4) : std::pair{0u, packed.blocks()};
  float* scratch = b.norm_scratch + size_t{worker.index()} * c.embedding;
  for (uint32_t i = first; i < last && first_block < last_block; ++i) {
    const uint32_t row = which.empty() ? i : which[i];
    k.rms_norm(b.residual[row], weight, c.embedding, c.norm_epsilon, scratch);
    pack(packed, i, scratch + first_block * kernels::kBlock, first_block, last_block, form);
  }
  if (!alone) worker.barrier();
  return packed;
}

void ForwardPass::Impl::layer(Worker& worker, uint32_t index) {
  const Layer& l = w.layers[index];
  const Activations x = norm_and_pack(worker, l.attention_norm, forms[index].attention, {}, n());

  const uint32_t q_panels = l.q.panels(), k_panels = l.k.panels(), v_panels = l.v.panels();
  for_panels(worker, q_panels + k_panels + v_panels, 1, [&](uint32_t first, uint32_t last) {
    const auto part = [&](const PanelMatrix& m, uint32_t begin, float* out, const float* bias) {
      const uint32_t end = begin + m.panels(), from = std::max(first, begin), to = std::min(last, end);
      if (from < to) k.matmul({m, x, from - begin, to - begin, out, b.qkv.stride, bias});
    };
    part(l.q, 0, b.qkv.data, l.q_bias);
    part(l.k, q_panels, b.qkv.data + q_dim, l.k_bias);
    part(l.v, q_panels + k_panels, b.qkv.data + q_dim + kv_dim, l.v_bias);
  });
  worker.barrier();

  attention(worker, index);

  const Activations attended[] = {b.attention_out.shared(n()), b.attention_rest.shared(n())};
  project(worker, l.attention_output, std::span(attended, forms[index].output.q8 ? 2 : 1), l.attention_output_bias,
          l.post_attention_norm);
  if (experts) {
    experts->run(worker, l, b.residual, n());
  } else {
    feed_forward(worker, index);
  }
}

/// Adds the product of a matrix with each of `inputs` to the residual stream; with a `post_norm` their normalised sum.
void ForwardPass::Impl::project(Worker& worker, const PanelMatrix& m, std::span<const Activations> inputs,
                                const float* bias, const float* post_norm) {
  const FloatRows out = post_norm ? b.branch : b.residual;
  for_panels(worker, m.panels(), 1, [&](uint32_t first, uint32_t last) {
    k.matmul({m, inputs[0], first, last, out.data, out.stride, bias, post_norm == nullptr});
    for (const Activations& input : inputs.subspan(1))
      k.matmul({m, input, first, last, out.data, out.stride, nullptr, true});
  });
  worker.barrier();
  if (!post_norm) return;
  const auto [first, last] = worker.share(n());
  for (uint32_t r = first; r < last; ++r) {
    float *branch = b.branch[r], *x = b.residual[r];
    k.rms_norm(branch, post_norm, c.embedding, c.norm_epsilon, branch);
    for (uint32_t i = 0; i < c.embedding; ++i) x[i] += branch[i];
  }
  worker.barrier();
}

void ForwardPass::Impl::feed_forward(Worker& worker, uint32_t index) {
  const Layer& l = w.layers[index];
  const Activations x = norm_and_pack(worker, l.feed_forward_norm, forms[index].feed_forward, {}, n());
  const Activations activated = b.activated.shared(n());
  const auto activate = c.activation == Activation::gelu ? k.gelu_mul : k.silu_mul;
  const FloatRows gate = b.gate[worker.index()], up = b.up[worker.index()];
  const auto part = [&](uint32_t first, uint32_t last) {
    const PanelMatrix gates = l.gate.part(first, last), ups = l.up.part(first, last);
    const uint32_t columns = gates.rows, first_block = first * kernels::kPanelRows / kernels::kBlock;
    const uint32_t last_block = first_block + (columns + kernels::kBlock - 1) / kernels::kBlock;
    k.matmul({gates, x, 0, gates.panels(), gate.data, gate.stride});
    k.matmul({ups, x, 0, ups.panels(), up.data, up.stride});
    for (uint32_t r = 0; r < n(); ++r) {
      activate(gate[r], up[r], columns, gate[r]);
      pack(activated, r, gate[r], first_block, last_block, forms[index].down);
    }
  };
  for_panels(worker, l.gate.panels(), 2, [&](uint32_t first, uint32_t last) {
    for (; first < last; first += StepBuffers::kGatePanels)
      part(first, std::min(last, first + StepBuffers::kGatePanels));
  });
  worker.barrier();
  project(worker, l.down, std::span(&activated, 1), nullptr, l.post_feed_forward_norm);
}

void ForwardPass::Impl::output_head(Worker& worker) {
  if (logit_rows.empty()) return;
  const auto wanted = static_cast<uint32_t>(logit_rows.size());
  const Activations x = norm_and_pack(worker, w.output_norm, output_form, logit_rows, wanted);
  for_panels(worker, w.output.panels(), 1, [&](uint32_t first, uint32_t last) {
    k.matmul({w.output, x, first, last, b.logits, c.vocabulary});
    if (c.logit_soft_cap == 0) return;
    const uint32_t from = first * kernels::kPanelRows, to = std::min(last * kernels::kPanelRows, c.vocabulary);
    for (uint32_t r = 0; r < wanted; ++r)
      k.soft_cap(b.logits + size_t{r} * c.vocabulary + from, to - from, c.logit_soft_cap);
  });
}

// ---- attention ----------------------------------------------------------------------------------------------------

/// Normalises (where the model does) and rotates the queries of one KV head and its key, and stores key and value in
/// the row's page.
void ForwardPass::Impl::rope_head_group(uint32_t row, uint32_t kv_head, uint32_t layer_index) {
  const Layer& l = w.layers[layer_index];
  const bool own_rope = model->window_rope() && c.windowed(layer_index);
  const auto half = static_cast<uint32_t>((own_rope ? *model->window_rope() : model->rope()).frequency.size());
  const float* cos = (own_rope ? b.window_cos : b.cos) + size_t{row} * half;
  const float* sin = (own_rope ? b.window_sin : b.sin) + size_t{row} * half;
  float* q = b.qkv[row] + size_t{kv_head} * group * c.head_dim;
  float* key = b.qkv[row] + q_dim + size_t{kv_head} * c.head_dim;
  const float* value = key + kv_dim;
  const auto turn = [&](float* head, const float* norm) {
    if (norm) k.rms_norm(head, norm, c.head_dim, c.norm_epsilon, head);
    if (head == key && recorded_keys) {
      std::copy_n(key, c.head_dim,
                  recorded_keys + (size_t{layer_index} * n() + row) * kv_dim + size_t{kv_head} * c.head_dim);
    }
    k.rope(head, cos, sin, half, c.rope.neox);
  };
  for (uint32_t h = 0; h < group; ++h) turn(q + h * c.head_dim, l.q_norm);
  turn(key, l.k_norm);
  const uint32_t position = rows[row].position;
  if (const kernels::KeyMean* mean = key_means.find(layer_index, kv_head)) {
    k.remove_key_mean(*mean, c.head_dim, position, key);
  }
  std::byte* page = kv.payload(chunks[rows[row].chunk].pages[position / shm::kPageTokens]);
  const shm::PageGeometry& g = kv.geometry();
  k.store_k(static_cast<kernels::KvType>(g.k_type), c.head_dim, key, page + g.k_offset(layer_index, kv_head),
            position % shm::kPageTokens);
  k.store_v(static_cast<kernels::KvType>(g.v_type), c.head_dim, value, page + g.v_offset(layer_index, kv_head),
            position % shm::kPageTokens);
}

void ForwardPass::Impl::attention(Worker& worker, uint32_t layer_index) {
  const bool split = !plan.merges().empty();
  if (!single_rows || split) {
    const uint32_t items = n() * c.kv_heads;
    const auto [first, last] = worker.share(items);
    for (uint32_t i = first; i < last; ++i) rope_head_group(i / c.kv_heads, i % c.kv_heads, layer_index);
    worker.barrier();
  }
  for (uint32_t i; (i = worker.next()) < plan.items().size();) {
    const AttentionItem& item = plan.items()[i];
    if (single_rows && !split) rope_head_group(chunk_row[item.chunk], item.kv_head, layer_index);
    if (item.whole()) {
      attend(worker, item, layer_index);
    } else {
      attend_stack(worker, item, layer_index);
    }
  }
  worker.barrier();
  if (split) {
    for (uint32_t i; (i = worker.next()) < plan.merges().size();) merge(worker, plan.merges()[i], layer_index);
    worker.barrier();
  }
  if (!head_groups_are_blocks()) {  // the groups' columns share blocks: pack whole rows
    const auto [first, last] = worker.share(n());
    for (uint32_t r = first; r < last; ++r) {
      pack_attended_row(r, 0, b.attention_out.shared(n()).blocks(), forms[layer_index].output);
    }
    worker.barrier();
  }
}

/// All but the pages, for rows of one chunk.
kernels::AttentionArgs ForwardPass::Impl::attention_args(Worker& worker, const AttentionItem& item,
                                                         uint32_t layer_index) {
  const shm::PageGeometry& g = kv.geometry();
  const auto& pointers = block_pointers[worker.index()];
  const uint32_t row = chunk_row[item.chunk] + item.first_row;
  const size_t head_column = size_t{item.kv_head} * group * c.head_dim;
  return {.q = b.qkv[row] + head_column,
          .q_stride = b.qkv.stride,
          .out = b.attended + size_t{row} * q_dim + head_column,
          .out_stride = q_dim,
          .rows = item.rows,
          .group = group,
          .head_dim = c.head_dim,
          .first_position = chunks[item.chunk].first_position + item.first_row,
          .scale = c.attention_scale,
          .k_type = static_cast<kernels::KvType>(g.k_type),
          .v_type = static_cast<kernels::KvType>(g.v_type),
          .k_blocks = pointers.data(),
          .v_blocks = pointers.data() + pointers.size() / 2,
          .window = c.windowed(layer_index) ? c.window : 0,
          .soft_cap = c.attention_soft_cap,
          .key_mean = key_means.find(layer_index, item.kv_head)};
}

float* ForwardPass::Impl::partials_of(uint32_t chunk, uint32_t kv_head) const {
  const size_t segments = chunks[chunk].first_position / kernels::kAttentionSegment + 1;
  return b.partials +
         (plan.partial_begin(chunk) + kv_head * segments * group) * kernels::attention_partial_floats(c.head_dim);
}

void ForwardPass::Impl::attend(Worker& worker, const AttentionItem& item, uint32_t layer_index) {
  const uint32_t end = chunks[item.chunk].first_position + item.first_row + item.rows;
  auto& pointers = block_pointers[worker.index()];
  const size_t half = pointers.size() / 2;
  const size_t k_offset = kv.geometry().k_offset(layer_index, item.kv_head),
               v_offset = kv.geometry().v_offset(layer_index, item.kv_head);
  for (uint32_t p = 0; p * shm::kPageTokens < end; ++p) {
    const std::byte* page = kv.payload(chunks[item.chunk].pages[p]);
    pointers[p] = page + k_offset;
    pointers[half + p] = page + v_offset;
  }
  k.attention(attention_args(worker, item, layer_index));
  pack_attended(item, layer_index);
}

/// One segment of several chunks' contexts.
void ForwardPass::Impl::attend_stack(Worker& worker, const AttentionItem& item, uint32_t layer_index) {
  auto& pointers = block_pointers[worker.index()];
  auto& stack = stacks[worker.index()];
  const size_t half = pointers.size() / 2;
  const size_t k_offset = kv.geometry().k_offset(layer_index, item.kv_head),
               v_offset = kv.geometry().v_offset(layer_index, item.kv_head);
  const uint32_t first_page = item.segment * kernels::kSegmentPages;
  for (uint32_t i = 0; i < item.rows; ++i) {
    const uint32_t index = plan.order()[item.chunk + i];
    const Chunk& chunk = chunks[index];
    stack[i] = {b.qkv[chunk_row[index]] + size_t{item.kv_head} * group * c.head_dim, chunk.first_position,
                partials_of(index, item.kv_head)};
    const uint32_t pages = chunk.first_position / shm::kPageTokens + 1 - first_page;
    for (uint32_t p = 0; p < kernels::kSegmentPages; ++p) {
      const std::byte* page = p < pages ? kv.payload(chunk.pages[first_page + p]) : nullptr;
      pointers[i * kernels::kSegmentPages + p] = page ? page + k_offset : nullptr;
      pointers[half + i * kernels::kSegmentPages + p] = page ? page + v_offset : nullptr;
    }
  }
  kernels::AttentionArgs args =
      attention_args(worker, {plan.order()[item.chunk], item.kv_head, 0, item.rows, 0}, layer_index);
  args.stack = stack.data();
  args.stack_pages = kernels::kSegmentPages;
  k.attention_partial(args, item.segment, 0, nullptr);
}

void ForwardPass::Impl::merge(Worker& worker, const AttentionItem& item, uint32_t layer_index) {
  k.attention_merge(attention_args(worker, item, layer_index), 0, 1, item.segment,
                    partials_of(item.chunk, item.kv_head));
  pack_attended(item, layer_index);
}

/// The finished columns of a head group become input blocks of the output projection, where they are whole blocks.
void ForwardPass::Impl::pack_attended(const AttentionItem& item, uint32_t layer_index) {
  if (!head_groups_are_blocks()) return;
  const uint32_t blocks = group * c.head_dim / kernels::kBlock;
  for (uint32_t i = 0; i < item.rows; ++i) {
    pack_attended_row(chunk_row[item.chunk] + item.first_row + i, item.kv_head * blocks, (item.kv_head + 1) * blocks,
                      forms[layer_index].output);
  }
}

/// The output projection is a small part of a layer's work and a large one of its rounding error: its quantised input
/// comes in two parts, the values and what their quantisation left.
void ForwardPass::Impl::pack_attended_row(uint32_t row, uint32_t first_block, uint32_t last_block, Forms form) {
  const Activations packed = b.attention_out.shared(n());
  float *attended = b.attended + size_t{row} * q_dim, *x = attended + first_block * kernels::kBlock;
  pack(packed, row, x, first_block, last_block, form);
  if (!form.q8) return;
  kernels::subtract_packed(packed, row, first_block, last_block, attended);
  k.pack_q8(b.attention_rest.shared(n()), row, x, first_block, last_block);
}

// ---- the public face ----------------------------------------------------------------------------------------------

ForwardPass::ForwardPass(std::shared_ptr<const Model> model, const KernelSet& kernels, runtime::WorkerPool& pool,
                         shm::KvPages& kv, uint32_t max_rows, uint32_t max_logits)
    : impl_(std::make_unique<Impl>(std::move(model), kernels, pool, kv, max_rows, max_logits)) {}

ForwardPass::~ForwardPass() = default;

std::span<const float> ForwardPass::step(std::span<const Chunk> chunks) {
  impl_->prepare(chunks);
  impl_->pool.run([this](Worker& worker) { impl_->run(worker); });
  return {impl_->b.logits, impl_->logit_rows.size() * size_t{impl_->c.vocabulary}};
}

void ForwardPass::record_keys(float* keys) { impl_->recorded_keys = keys; }
uint64_t ForwardPass::kv_bytes_read() const { return impl_->plan.kv_bytes(); }
uint32_t ForwardPass::max_rows() const { return impl_->max_rows; }
uint32_t ForwardPass::max_logits() const { return impl_->max_logits; }
uint32_t ForwardPass::vocabulary() const { return impl_->c.vocabulary; }

}  // namespace ellm::model
