// First in, first out.
#pragma once

#include "tools/replay/eviction/ranked_policy.h"

namespace terrace::tools {

class FifoPolicy final : public RankedPolicy {
 public:
  void OnInsert(BlockId id, const BlockTraits& traits, uint64_t) override {
    RankOf(id) = {traits.priority, ++insert_count_};
  }
  void OnTouch(std::span<const BlockId>, const TouchContext&) override {}

 private:
  uint64_t insert_count_ = 0;  // the order: when it came
};

}  // namespace terrace::tools
