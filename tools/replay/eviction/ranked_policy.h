// RankedPolicy: what policies have in common that give every block a rank and let the lowest go:
// what may leave is in a heap by rank. A policy says what ranks are.
#pragma once

#include <vector>

#include "daemon/policy/eviction/candidate_heap.h"
#include "daemon/policy/eviction/policy.h"
#include "terrace/check.h"

namespace terrace::tools {

class RankedPolicy : public EvictionPolicy {
 public:
  void OnErase(BlockId) override {}
  void OnCandidate(BlockId id) override {
    TERRACE_CHECK(id < ranks_.size(), "a block comes before it may go");
    heap_.Add(id, ranks_[id]);
  }
  void OnHeld(BlockId id) override { heap_.Remove(id); }
  BlockId Victim() const override { return heap_.first(); }
  void SetPriority(BlockId id, uint8_t priority) override {
    ranks_[id].priority = priority;
    Resort(id);
  }

 protected:
  CandidateHeap::Rank& RankOf(BlockId id) {
    if (id >= ranks_.size()) ranks_.resize(id + 1);
    return ranks_[id];
  }
  // Its rank has changed.
  void Resort(BlockId id) {
    if (heap_.Contains(id)) heap_.Change(id, ranks_[id]);
  }

 private:
  CandidateHeap heap_;
  std::vector<CandidateHeap::Rank> ranks_;  // by id
};

}  // namespace terrace::tools
