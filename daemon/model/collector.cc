// See collector.h. Matrices stand in the order in which they were named, the vectors behind them.
#include "daemon/model/collector.h"

#include <xxhash.h>

#include <algorithm>
#include <cstdio>
#include <stdexcept>

#include "daemon/model/threads.h"
#include "kernels/blocks.h"

namespace ellm::model {
namespace {

using format::Tensor;
using kernels::PanelMatrix;
using kernels::WeightType;

constexpr uint32_t kPiecePanels = 16;

WeightType type_of(const Tensor& tensor) { return static_cast<WeightType>(tensor.type->id); }

}  // namespace

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
  matrices_.push_back({&tensor, first, target, matrix_bytes_});
  matrix_bytes_ += target->panel_bytes * target->panels();
  first_piece_.push_back(first_piece_.back() + (target->panels() + kPiecePanels - 1) / kPiecePanels);
}

void Collector::vector(const std::string& name, const float** target) {
  *target = nullptr;
  const Tensor* tensor = file_.find_tensor(name);
  if (tensor == nullptr) return;
  vectors_.push_back({tensor, target, vector_floats_});
  vector_floats_ += tensor->elements();
}

std::string Collector::layout() const {
  std::vector<uint64_t> numbers = {kernels::kPanelVersion, kPiecePanels, file_.tensors().size()};
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
  const auto first = static_cast<uint32_t>(number - first_piece_[m]) * kPiecePanels;
  Piece p{&matrices_[m], first * kernels::kPanelRows, *matrices_[m].target, matrices_[m].offset};
  p.panels.rows = std::min(kPiecePanels * kernels::kPanelRows, p.panels.rows - p.first_row);
  p.offset += first * p.panels.panel_bytes;
  return p;
}

void Collector::fill(std::byte* memory, std::span<uint64_t> checks, uint32_t threads) const {
  on_threads<Buffers>(threads, pieces(), [&](uint64_t i, Buffers& buffers) {
    std::span<const std::byte> written;
    if (i == first_piece_.back()) {
      fill_vectors(memory);
      written = {memory + matrix_bytes_, vector_floats_ * sizeof(float)};
    } else {
      const Piece p = piece(i);
      fill_piece(p, memory, buffers);
      written = {memory + p.offset, p.panels.panel_bytes * p.panels.panels()};
    }
    if (!checks.empty()) checks[i] = checksum(written);  // while it is in the cache
  });
}

void Collector::fill_piece(const Piece& p, std::byte* memory, Buffers& buffers) const {
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
  kernels::repack(p.panels, memory + p.offset, rows, 0, p.panels.panels());
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
