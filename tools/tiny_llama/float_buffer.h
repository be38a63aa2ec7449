// A fixed run of floats, zero at first, on a cache-line boundary. One alignment for everything the
// matrix kernels read, so that no kernel has a reason to take another path.
#pragma once

#include <algorithm>
#include <cstddef>
#include <memory>
#include <new>
#include <span>

namespace terrace::tiny_llama {

inline constexpr std::align_val_t kFloatAlignment{64};

class FloatBuffer {
 public:
  FloatBuffer() = default;
  explicit FloatBuffer(size_t count)
      : floats_(static_cast<float*>(::operator new[](count * sizeof(float), kFloatAlignment))),
        count_(count) {
    std::fill_n(floats_.get(), count, 0.0f);
  }

  float* data() { return floats_.get(); }
  const float* data() const { return floats_.get(); }
  size_t count() const { return count_; }
  std::span<float> span() { return {data(), count_}; }
  std::span<const float> span() const { return {data(), count_}; }

 private:
  struct AlignedDelete {
    void operator()(float* floats) const { ::operator delete[](floats, kFloatAlignment); }
  };
  std::unique_ptr<float, AlignedDelete> floats_;
  size_t count_ = 0;
};

}  // namespace terrace::tiny_llama
