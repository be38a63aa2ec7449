// Walks the runs of a nest: offsets of each in its page and in its slot, by addition alone.
#pragma once

#include <array>
#include <cstdint>
#include <span>

#include "cuda/abi/device.h"

namespace terrace {

class RunCursor {
 public:
  // REQUIRES: at most kPagedAxesMax axes, of one step or more each; they outlive the cursor.
  explicit RunCursor(std::span<const PagedAxis> axes) : axes_(axes) {}

  uint64_t page_offset_bytes() const { return page_offset_bytes_; }
  uint64_t slot_offset_bytes() const { return slot_offset_bytes_; }

  // False after the last run.
  bool Advance() {
    for (size_t axis = axes_.size(); axis-- > 0;) {
      const PagedAxis& loop = axes_[axis];
      page_offset_bytes_ += loop.page_stride_bytes;
      slot_offset_bytes_ += loop.slot_stride_bytes;
      if (++steps_[axis] < loop.count) return true;
      page_offset_bytes_ -= loop.count * loop.page_stride_bytes;
      slot_offset_bytes_ -= loop.count * loop.slot_stride_bytes;
      steps_[axis] = 0;
    }
    return false;
  }

 private:
  std::span<const PagedAxis> axes_;
  std::array<uint64_t, kPagedAxesMax> steps_ = {};
  uint64_t page_offset_bytes_ = 0;
  uint64_t slot_offset_bytes_ = 0;
};

}  // namespace terrace
