// ChunkedArray: an array that grows without moving what it holds, so that growth costs one chunk
// and a reference stays good. Rows of `stride` elements; freed rows are handed out again, last
// freed first.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

namespace terrace {

template <typename T>
class RowPool {
 public:
  // `stride` elements a row; may be 0 (rows without content).
  explicit RowPool(uint32_t stride)
      : stride_(stride),
        rows_per_chunk_(static_cast<uint32_t>(
            std::clamp<size_t>(kChunkBytes / (sizeof(T) * std::max(stride, 1u)), 1, 256))) {}

  // A row of value-initialised elements.
  uint32_t Take() {
    ++used_count_;
    if (!free_rows_.empty()) {
      const uint32_t row = free_rows_.back();
      free_rows_.pop_back();
      for (T& element : at(row)) element = T{};
      return row;
    }
    if (row_count_ % rows_per_chunk_ == 0) {
      chunks_.push_back(std::make_unique<T[]>(size_t{rows_per_chunk_} * stride_));
    }
    return row_count_++;
  }
  void Give(uint32_t row) {
    --used_count_;
    free_rows_.push_back(row);
  }
  std::span<T> at(uint32_t row) {
    return {chunks_[row / rows_per_chunk_].get() + size_t{row % rows_per_chunk_} * stride_,
            stride_};
  }
  std::span<const T> at(uint32_t row) const {
    return {chunks_[row / rows_per_chunk_].get() + size_t{row % rows_per_chunk_} * stride_,
            stride_};
  }
  uint32_t used_count() const { return used_count_; }

 private:
  static constexpr size_t kChunkBytes = 16384;

  uint32_t stride_;
  uint32_t rows_per_chunk_;
  uint32_t row_count_ = 0;
  uint32_t used_count_ = 0;
  std::vector<std::unique_ptr<T[]>> chunks_;
  std::vector<uint32_t> free_rows_;
};

// Elements by an index that others hand out.
template <typename T>
class ChunkedArray {
 public:
  // REQUIRES for operator[]: Reach(index) came before.
  void Reach(uint32_t index) {
    while (index / kPerChunk >= chunks_.size()) {
      chunks_.push_back(std::make_unique<T[]>(kPerChunk));
    }
  }
  T& operator[](uint32_t index) { return chunks_[index / kPerChunk][index % kPerChunk]; }
  const T& operator[](uint32_t index) const {
    return chunks_[index / kPerChunk][index % kPerChunk];
  }
  void Prefetch(uint32_t index) const { __builtin_prefetch(&(*this)[index]); }
  uint32_t reach() const { return static_cast<uint32_t>(chunks_.size()) * kPerChunk; }

 private:
  static constexpr uint32_t kPerChunk = 1024;

  std::vector<std::unique_ptr<T[]>> chunks_;
};

}  // namespace terrace
