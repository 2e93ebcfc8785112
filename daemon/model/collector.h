// What a model needs of its file: matrices to repack, vectors to widen to f32, and the place of each in one piece of
// memory. Internal to daemon/model; one thread, but for what it says itself.
#pragma once
#include <cstddef>
#include <cstdint>
#include <functional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "daemon/format/gguf.h"
#include "kernels/panel.h"

namespace ellm::model {

class Collector {
 public:
  Collector(const format::Gguf& file, bool float_weights);

  // First everything is named …
  bool has(const std::string& name) const { return file_.find_tensor(name) != nullptr; }
  void matrix(const std::string& name, kernels::PanelMatrix* target) { rows(name, 0, find(name).rows(), target); }
  /// `count` of a tensor's rows as a matrix of its own.
  void rows(const std::string& name, uint64_t first, uint64_t count, kernels::PanelMatrix* target);
  /// A norm or bias as f32; null where the file has none.
  void vector(const std::string& name, const float** target);

  // … then it has a size and a layout: two that have the same layout of the same file have the same bytes.
  size_t matrix_bytes() const { return matrix_bytes_; }
  size_t bytes() const { return matrix_bytes_ + vector_floats_ * sizeof(float); }
  std::string layout() const;

  /// Reads, repacks and widens everything into `memory`, in pieces, on `threads` threads; `checks` (by piece, or empty)
  /// get their checksums. The file is read, not mapped, so that one that is cut short meanwhile is an error of this
  /// load and no signal for the whole process. Each thread calls populate(first, end) before it writes to these bytes;
  /// an errno that it returns ends the work and is returned, else 0.
  int fill(std::byte* memory, std::span<uint64_t> checks, uint32_t threads,
           const std::function<int(size_t, size_t)>& populate) const;
  /// Has all targets point into `memory`.
  void place(const std::byte* memory) const;

  size_t pieces() const { return first_piece_.back() + 1; }
  std::vector<std::span<const std::byte>> pieces_of(const std::byte* memory) const;
  static uint64_t checksum(std::span<const std::byte> piece);

 private:
  struct Matrix {
    const format::Tensor* tensor;
    uint64_t first_row;  // of the tensor's
    kernels::PanelMatrix* target;
    size_t offset;
    uint32_t piece_panels;
  };
  struct Vector {
    const format::Tensor* tensor;
    const float** target;
    size_t offset;  // in floats, behind the matrices
  };
  struct Buffers {  // of a thread
    std::vector<std::byte> rows, halves;
    std::vector<float> values;
  };
  /// A few panels of a matrix.
  struct Piece {
    const Matrix* matrix;
    uint32_t first_row;
    kernels::PanelMatrix panels;  // without data
    size_t offset;
  };

  const format::Tensor& find(const std::string& name) const;
  Piece piece(uint64_t number) const;
  std::vector<uint64_t> chunks() const;
  void fill_piece(uint64_t number, std::byte* memory, std::span<uint64_t> checks, Buffers& buffers) const;
  void fill_panels(const Piece& piece, std::byte* memory, Buffers& buffers) const;
  void fill_vectors(std::byte* memory) const;

  const format::Gguf& file_;
  const bool float_weights_;
  const kernels::Repack repack_;
  std::vector<Matrix> matrices_;
  std::vector<Vector> vectors_;
  std::vector<uint64_t> first_piece_ = {0};  // by matrix; then their number
  size_t matrix_bytes_ = 0, vector_floats_ = 0;
};

}  // namespace ellm::model
