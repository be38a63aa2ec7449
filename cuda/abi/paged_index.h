// Where the n-th vector of a paged copy lies in its page and in its slot: the arithmetic of the
// copy kernels, kept where a test without a GPU can run it. Divisors are fixed before a launch, so
// each division is a multiplication.
#pragma once

#include <cstdint>

#include "cuda/abi/device.h"

#ifdef __CUDACC__
#define TERRACE_HOST_DEVICE __host__ __device__
#else
#define TERRACE_HOST_DEVICE
#endif

namespace terrace {

// n / divisor for n < 2^31, after Granlund and Montgomery, "Division by Invariant Integers using
// Multiplication": with 2^s ≥ divisor, ⌈2^(31+s) / divisor⌉ · n / 2^(31+s) rounds down to it.
class FastDivider {
 public:
  FastDivider() = default;
  // REQUIRES: 1 ≤ divisor < 2^31.
  explicit FastDivider(uint32_t divisor) : divisor_(divisor) {
    uint32_t log2 = 0;
    while ((uint64_t{1} << log2) < divisor) ++log2;
    if (divisor == 1) return;
    multiplier_ = static_cast<uint32_t>(((uint64_t{1} << (31 + log2)) + divisor - 1) / divisor);
    shift_ = log2 - 1;
  }

  TERRACE_HOST_DEVICE uint32_t divisor() const { return divisor_; }
  TERRACE_HOST_DEVICE uint32_t Divide(uint32_t n) const {
    if (divisor_ == 1) return n;
#ifdef __CUDA_ARCH__
    return __umulhi(n, multiplier_) >> shift_;
#else
    return static_cast<uint32_t>((uint64_t{n} * multiplier_) >> 32) >> shift_;
#endif
  }

 private:
  uint32_t divisor_ = 1;
  uint32_t multiplier_ = 0;
  uint32_t shift_ = 0;
};

// A launch's nest in units of one vector.
struct PagedIndex {
  struct Place {
    uint32_t row;   // of the launch's rows
    uint32_t page;  // of the launch's pages
    uint64_t page_offset_bytes;
    uint64_t slot_offset_bytes;
  };

  FastDivider vectors_per_run;
  FastDivider vectors_per_part;  // one row's share of one page
  FastDivider page_count;
  FastDivider axis_counts[kPagedAxesMax];  // the innermost first; unused ones are 1
  uint64_t page_strides[kPagedAxesMax] = {};
  uint64_t slot_strides[kPagedAxesMax] = {};
  uint32_t vector_count = 0;

  // Rows outermost, so that a layer is complete before the next begins. REQUIRES: n < vector_count.
  TERRACE_HOST_DEVICE Place At(uint32_t n, uint32_t vector_bytes) const {
    const uint32_t part = vectors_per_part.Divide(n);
    const uint32_t vector = n - part * vectors_per_part.divisor();
    uint32_t run = vectors_per_run.Divide(vector);
    Place place;
    place.row = page_count.Divide(part);
    place.page = part - place.row * page_count.divisor();
    const uint64_t within = uint64_t{vector - run * vectors_per_run.divisor()} * vector_bytes;
    place.page_offset_bytes = within;
    place.slot_offset_bytes = within;
#ifdef __CUDA_ARCH__
#pragma unroll
#endif
    for (uint32_t axis = 0; axis < kPagedAxesMax; ++axis) {
      const uint32_t outer = axis_counts[axis].Divide(run);
      const uint32_t step = run - outer * axis_counts[axis].divisor();
      place.page_offset_bytes += step * page_strides[axis];
      place.slot_offset_bytes += step * slot_strides[axis];
      run = outer;
    }
    return place;
  }
};

// The widest vector, of 16, 8, 4, 2 or 1 bytes, that every address of the launch is a multiple of,
// as far as strides tell; addresses of slots are the launch's own, tensors' bases come from `rows`.
uint32_t PagedVectorBytes(const PagedLaunch& launch, uint64_t bases_or);

// False where the copy has 2^31 vectors or more: launch fewer rows or pages.
bool MakePagedIndex(const PagedLaunch& launch, uint32_t vector_bytes, PagedIndex* index);

}  // namespace terrace
