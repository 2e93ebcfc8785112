// See collector.h. Matrices stand in the order in which they were named, the vectors behind them.
#include "daemon/model/collector.h"

#include <xxhash.h>

#include <algorithm>
#include <atomic>
#include <cstdio>
#include <stdexcept>

#include "daemon/model/forward.h"
#include "daemon/model/threads.h"
#include "kernels/blocks.h"

namespace ellm::model {
namespace {

using format::Tensor;
using kernels::PanelMatrix;
using kernels::WeightType;

/// A piece is read, repacked and written (nearly as many bytes again) before it leaves a core's own cache, a chunk
/// before it leaves that of all cores: it was cleared by the kernel just before.
constexpr uint64_t kPieceBytes = 128 << 10, kChunkBytes = 4 << 20;

WeightType type_of(const Tensor& tensor) { return static_cast<WeightType>(tensor.type->id); }

}  // namespace

Collector::Collector(const format::Gguf& file, bool float_weights)
    : file_(file), float_weights_(float_weights), repack_(kernels::repack_of(choose_kernels("auto").level)) {}

const Tensor& Collector::find(const std::string& name) const {
  const Tensor* tensor = file_.find_tensor(name);
  if (tensor == nullptr) throw file_.error("tensor '" + name + "' is missing");
  return *tensor;
}

void Collector::rows(const std::string& name, uint64_t first, uint64_t count, PanelMatrix* target) {
  const Tensor& tensor = find(name);
  const WeightType type = float_weights_ && kernels::is_quantised(type_of(tensor)) ? WeightType::f16 : type_of(tensor);
  const auto cols = static_cast<uint32_t>(tensor.dims[0]);
  *target = {type, static_cast<uint32_t>(count), cols, nullptr, kernels::panel_bytes(type, cols)};
  const auto piece_panels = static_cast<uint32_t>(std::max(kPieceBytes / target->panel_bytes, uint64_t{1}));
  matrices_.push_back({&tensor, first, target, matrix_bytes_, piece_panels});
  matrix_bytes_ += target->panel_bytes * target->panels();
  first_piece_.push_back(first_piece_.back() + (target->panels() + piece_panels - 1) / piece_panels);
}

void Collector::vector(const std::string& name, const float** target) {
  *target = nullptr;
  const Tensor* tensor = file_.find_tensor(name);
  if (tensor == nullptr) return;
  vectors_.push_back({tensor, target, vector_floats_});
  vector_floats_ += tensor->elements();
}

std::string Collector::layout() const {
  std::vector<uint64_t> numbers = {kernels::kPanelVersion, kPieceBytes, file_.tensors().size()};
  const auto place_in_file = [&](const Tensor& tensor) {
    numbers.insert(numbers.end(), {tensor.part, tensor.offset, tensor.type->id, tensor.elements()});
  };
  for (const Matrix& m : matrices_) {
    place_in_file(*m.tensor);
    numbers.insert(numbers.end(), {m.first_row, m.target->rows, m.target->cols, uint64_t(m.target->type), m.offset});
  }
  for (const Vector& v : vectors_) place_in_file(*v.tensor);
  char text[48];
  std::snprintf(text, sizeof text, " panels %u layout %016llx", kernels::kPanelVersion,
                static_cast<unsigned long long>(XXH3_64bits(numbers.data(), numbers.size() * sizeof(uint64_t))));
  return text;
}

Collector::Piece Collector::piece(uint64_t number) const {
  const size_t m = std::upper_bound(first_piece_.begin(), first_piece_.end(), number) - first_piece_.begin() - 1;
  const uint32_t panels = matrices_[m].piece_panels, first = static_cast<uint32_t>(number - first_piece_[m]) * panels;
  Piece p{&matrices_[m], first * kernels::kPanelRows, *matrices_[m].target, matrices_[m].offset};
  p.panels.rows = std::min(panels * kernels::kPanelRows, p.panels.rows - p.first_row);
  p.offset += first * p.panels.panel_bytes;
  return p;
}

/// The pieces with which each chunk begins, then their number.
std::vector<uint64_t> Collector::chunks() const {
  std::vector<uint64_t> first = {0};
  for (uint64_t i = 0, begin = 0; i < first_piece_.back(); ++i) {
    const size_t at = piece(i).offset;
    if (at - begin < kChunkBytes) continue;
    begin = at;
    first.push_back(i);
  }
  first.push_back(pieces());
  return first;
}

int Collector::fill(std::byte* memory, std::span<uint64_t> checks, uint32_t threads,
                    const std::function<int(size_t, size_t)>& populate) const {
  const std::vector<uint64_t> first = chunks();
  const auto offset = [&](uint64_t i) {
    return i < first_piece_.back() ? piece(i).offset : i < pieces() ? matrix_bytes_ : bytes();
  };
  std::atomic<int> error = 0;
  on_threads<Buffers>(threads, first.size() - 1, [&](uint64_t chunk, Buffers& buffers) {
    if (error != 0) return;
    if (const int failed = populate(offset(first[chunk]), offset(first[chunk + 1]))) {
      error = failed;
      return;
    }
    for (uint64_t i = first[chunk]; i < first[chunk + 1]; ++i) fill_piece(i, memory, checks, buffers);
  });
  return error;
}

void Collector::fill_piece(uint64_t i, std::byte* memory, std::span<uint64_t> checks, Buffers& buffers) const {
  std::span<const std::byte> written;
  if (i == first_piece_.back()) {
    fill_vectors(memory);
    written = {memory + matrix_bytes_, vector_floats_ * sizeof(float)};
  } else {
    const Piece p = piece(i);
    fill_panels(p, memory, buffers);
    written = {memory + p.offset, p.panels.panel_bytes * p.panels.panels()};
  }
  if (!checks.empty()) checks[i] = checksum(written);  // while it is in the cache
}

void Collector::fill_panels(const Piece& p, std::byte* memory, Buffers& buffers) const {
  const Tensor& tensor = *p.matrix->tensor;
  const uint64_t row_bytes = tensor.data.size() / tensor.rows();
  buffers.rows.resize(p.panels.rows * row_bytes);
  file_.read(tensor, (p.matrix->first_row + p.first_row) * row_bytes, buffers.rows);
  const std::byte* rows = buffers.rows.data();
  if (type_of(tensor) != p.panels.type) {
    const size_t n = size_t{p.panels.rows} * p.panels.cols;
    buffers.values.resize(n);
    buffers.halves.resize(2 * n);
    kernels::dequantize(type_of(tensor), rows, n, buffers.values.data());
    if (!kernels::quantize(WeightType::f16, buffers.values.data(), n, buffers.halves.data()))
      throw std::logic_error("no F16");
    rows = buffers.halves.data();
  }
  repack_(p.panels, memory + p.offset, rows, 0, p.panels.panels());
}

void Collector::fill_vectors(std::byte* memory) const {
  auto* floats = reinterpret_cast<float*>(memory + matrix_bytes_);
  std::vector<std::byte> stored;
  for (const Vector& v : vectors_) {
    stored.resize(v.tensor->data.size());
    file_.read(*v.tensor, 0, stored);
    kernels::dequantize(type_of(*v.tensor), stored.data(), v.tensor->elements(), floats + v.offset);
  }
}

void Collector::place(const std::byte* memory) const {
  for (const Matrix& m : matrices_) m.target->data = memory + m.offset;
  const auto* floats = reinterpret_cast<const float*>(memory + matrix_bytes_);
  for (const Vector& v : vectors_) *v.target = floats + v.offset;
}

std::vector<std::span<const std::byte>> Collector::pieces_of(const std::byte* memory) const {
  std::vector<std::span<const std::byte>> all;
  for (uint64_t i = 0; i < first_piece_.back(); ++i) {
    const Piece p = piece(i);
    all.emplace_back(memory + p.offset, p.panels.panel_bytes * p.panels.panels());
  }
  all.emplace_back(memory + matrix_bytes_, vector_floats_ * sizeof(float));
  return all;
}

uint64_t Collector::checksum(std::span<const std::byte> piece) { return XXH3_64bits(piece.data(), piece.size()); }

}  // namespace ellm::model
