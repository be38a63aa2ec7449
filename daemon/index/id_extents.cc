#include "daemon/index/id_extents.h"

#include <bit>

namespace terrace {
namespace {

uint32_t ClassOf(uint32_t length) { return static_cast<uint32_t>(std::bit_width(length)) - 1; }

}  // namespace

void IdExtents::List(BlockId first, uint32_t length) {
  const uint32_t length_class = ClassOf(length);
  const BlockId next = heads_[length_class];
  if (next != kBlockNone) cells_[next].high = cells_[next].high / kHighHalf * kHighHalf | first;
  // The last cell first: it may be the same one.
  cells_[first + length - 1].high = length * kHighHalf | kBlockNone;
  cells_[first].low = next * kHighHalf | length;
  cells_[first].high = cells_[first].high / kHighHalf * kHighHalf | kBlockNone;
  heads_[length_class] = first;
  listed_classes_ |= uint32_t{1} << length_class;
  free_count_ += length;
}

void IdExtents::Unlist(BlockId first) {
  const uint32_t length = LengthAt(first);
  const uint32_t length_class = ClassOf(length);
  const auto next = static_cast<BlockId>(cells_[first].low / kHighHalf);
  const auto previous = static_cast<BlockId>(cells_[first].high);
  if (next != kBlockNone) {
    cells_[next].high = cells_[next].high / kHighHalf * kHighHalf | previous;
  }
  if (previous != kBlockNone) {
    cells_[previous].low = next * kHighHalf | LengthAt(previous);
  } else {
    heads_[length_class] = next;
    if (next == kBlockNone) listed_classes_ &= ~(uint32_t{1} << length_class);
  }
  free_count_ -= length;
}

BlockId IdExtents::TakeFirst(BlockId first) {
  const uint32_t length = LengthAt(first);
  Unlist(first);
  if (length > 1) List(first + 1, length - 1);
  return first;
}

BlockId IdExtents::TakeAny(BlockId previous) {
  const bool has_fresh = id_count_ < blocks_max_;
  if (has_fresh && previous != kBlockNone && previous + 1 == id_count_) return id_count_++;
  const uint32_t largest = listed_classes_ == 0 ? 0 : ClassOf(listed_classes_);
  if (listed_classes_ != 0 && (largest >= ClassOf(kUsefulIds) || !has_fresh)) {
    return TakeFirst(heads_[largest]);
  }
  return has_fresh ? id_count_++ : kBlockNone;
}

}  // namespace terrace
