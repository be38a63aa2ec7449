#include "tools/replay/eviction/fifo.h"

namespace terrace::tools {

void FifoPolicy::OnInsert(BlockId id, const BlockTraits& traits, uint64_t) {
  if (id >= ranks_.size()) ranks_.resize(id + 1);
  ranks_[id] = {traits.priority, ++insert_count_};
}

void FifoPolicy::OnTouch(std::span<const BlockId>, const TouchContext&) {}

void FifoPolicy::OnErase(BlockId) {}

void FifoPolicy::OnCandidate(BlockId id) { heap_.Add(id, ranks_[id]); }

void FifoPolicy::OnHeld(BlockId id) { heap_.Remove(id); }

void FifoPolicy::SetPriority(BlockId id, uint8_t priority) {
  ranks_[id].priority = priority;
  if (heap_.Contains(id)) heap_.Change(id, ranks_[id]);
}

}  // namespace terrace::tools
