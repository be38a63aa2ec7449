// The policies from papers against the papers' own wording: lists walked from end to end, any block
// may go, one access a block, tail first.
#include <gtest/gtest.h>

#include <algorithm>
#include <list>
#include <map>
#include <memory>
#include <string_view>

#include "tests/unit/replay/synthetic_trace.h"
#include "tools/replay/eviction/compared_policies.h"
#include "tools/replay/eviction/frequency_sketch.h"
#include "tools/replay/replay_cache.h"

namespace terrace::tools {
namespace {

using Queue = std::list<BlockId>;  // front: newest

bool Holds(const Queue& queue, BlockId id) {
  return std::find(queue.begin(), queue.end(), id) != queue.end();
}

BlockId TakeOldest(Queue* queue) {
  const BlockId id = queue->back();
  queue->pop_back();
  return id;
}

class Reference {
 public:
  explicit Reference(size_t capacity) : capacity_(capacity) {}
  virtual ~Reference() = default;
  virtual bool Contains(BlockId id) const = 0;
  // Makes room first if the block is not there and the tier is full.
  virtual void Use(BlockId id) = 0;

 protected:
  const size_t capacity_;
};

class ReferenceSieve final : public Reference {
 public:
  using Reference::Reference;
  bool Contains(BlockId id) const override { return Holds(queue_, id); }
  void Use(BlockId id) override {
    if (Contains(id)) {
      is_visited_[id] = true;
      return;
    }
    if (queue_.size() == capacity_) Evict();
    queue_.push_front(id);
    is_visited_[id] = false;
  }

 private:
  void Evict() {
    Queue::iterator at = has_hand_ ? hand_ : std::prev(queue_.end());
    while (is_visited_[*at]) {
      is_visited_[*at] = false;
      at = at == queue_.begin() ? std::prev(queue_.end()) : std::prev(at);
    }
    has_hand_ = at != queue_.begin();
    if (has_hand_) hand_ = std::prev(at);
    queue_.erase(at);
  }

  Queue queue_;
  std::map<BlockId, bool> is_visited_;
  Queue::iterator hand_;
  bool has_hand_ = false;
};

class ReferenceS3Fifo final : public Reference {
 public:
  using Reference::Reference;
  bool Contains(BlockId id) const override { return Holds(small_, id) || Holds(main_, id); }
  void Use(BlockId id) override {
    if (Contains(id)) {
      uses_[id] = std::min(uses_[id] + 1, 3);
      return;
    }
    while (small_.size() + main_.size() == capacity_) EvictOrMove();
    uses_[id] = 0;
    const bool is_ghost = Holds(ghosts_, id);
    ghosts_.remove(id);
    (is_ghost ? main_ : small_).push_front(id);
  }

 private:
  void EvictOrMove() {
    const size_t small_max = std::max<size_t>(capacity_ / 10, 1);
    if (main_.empty() || (small_.size() >= small_max && !small_.empty())) {
      const BlockId id = TakeOldest(&small_);
      if (uses_[id] > 1) {
        uses_[id] = 0;
        main_.push_front(id);
        return;
      }
      ghosts_.push_front(id);
      if (ghosts_.size() > std::max<size_t>(capacity_ - capacity_ / 10, 1)) ghosts_.pop_back();
      return;
    }
    const BlockId id = TakeOldest(&main_);
    if (uses_[id] == 0) return;
    --uses_[id];
    main_.push_front(id);
  }

  Queue small_;
  Queue main_;
  Queue ghosts_;
  std::map<BlockId, int> uses_;
};

class ReferenceArc final : public Reference {
 public:
  using Reference::Reference;
  bool Contains(BlockId id) const override { return Holds(t1_, id) || Holds(t2_, id); }
  void Use(BlockId id) override {
    if (Contains(id)) {
      t1_.remove(id);
      t2_.remove(id);
      t2_.push_front(id);
      return;
    }
    if (t1_.size() + t2_.size() == capacity_) Replace();
    const auto b1 = static_cast<double>(b1_.size());
    const auto b2 = static_cast<double>(b2_.size());
    if (Holds(b1_, id)) {
      target_ = std::min(target_ + std::max(1.0, b2 / b1), static_cast<double>(capacity_));
      b1_.remove(id);
      t2_.push_front(id);
    } else if (Holds(b2_, id)) {
      target_ = std::max(target_ - std::max(1.0, b1 / b2), 0.0);
      b2_.remove(id);
      t2_.push_front(id);
    } else {
      t1_.push_front(id);
    }
  }

 private:
  void Replace() {
    if (!t1_.empty() && (static_cast<double>(t1_.size()) > target_ || t2_.empty())) {
      b1_.push_front(TakeOldest(&t1_));
    } else {
      b2_.push_front(TakeOldest(&t2_));
    }
    while (b1_.size() > capacity_ - t1_.size()) b1_.pop_back();
    while (b2_.size() > capacity_ - b1_.size()) b2_.pop_back();
  }

  Queue t1_, t2_, b1_, b2_;
  double target_ = 0;
};

// The lists are the reference; the sketch has a test of its own.
class ReferenceWTinyLfu final : public Reference {
 public:
  explicit ReferenceWTinyLfu(size_t capacity)
      : Reference(capacity),
        window_max_(std::max<size_t>(capacity / 100, 1)),
        protected_max_((capacity - std::min(window_max_, capacity)) * 80 / 100),
        sketch_(static_cast<uint32_t>(capacity)) {}
  bool Contains(BlockId id) const override {
    return Holds(window_, id) || Holds(probation_, id) || Holds(protected_, id);
  }
  void Use(BlockId id) override {
    if (!Contains(id)) {
      if (window_.size() + probation_.size() + protected_.size() == capacity_) Evict();
      sketch_.Count(ReplayCache::KeyOf(id));
      window_.push_front(id);
      if (window_.size() > window_max_) probation_.push_front(TakeOldest(&window_));
      return;
    }
    sketch_.Count(ReplayCache::KeyOf(id));
    if (Holds(window_, id)) {
      window_.remove(id);
      window_.push_front(id);
      return;
    }
    probation_.remove(id);
    protected_.remove(id);
    protected_.push_front(id);
    while (protected_.size() > protected_max_) probation_.push_front(TakeOldest(&protected_));
  }

 private:
  int UsesOf(BlockId id) const { return sketch_.FrequencyOf(ReplayCache::KeyOf(id)); }
  void Evict() {
    Queue* const old = probation_.empty() ? &protected_ : &probation_;
    if (window_.empty() || old->empty()) {
      TakeOldest(window_.empty() ? old : &window_);
      return;
    }
    if (window_.size() >= window_max_ && UsesOf(window_.back()) <= UsesOf(old->back())) {
      TakeOldest(&window_);
      return;
    }
    TakeOldest(old);
    if (window_.size() >= window_max_) probation_.push_front(TakeOldest(&window_));
  }

  const size_t window_max_;
  const size_t protected_max_;
  Queue window_, probation_, protected_;
  FrequencySketch sketch_;
};

uint64_t CountReferenceHits(const DenseTrace& trace, size_t capacity, Reference* reference) {
  uint64_t hit_count = 0;
  for (size_t r = 0; r < trace.request_count(); ++r) {
    auto path = trace.path(r);
    for (const BlockId id : path) {
      if (!reference->Contains(id)) break;
      ++hit_count;
    }
    path = path.first(std::min(path.size(), capacity));
    for (auto id = path.rbegin(); id != path.rend(); ++id) reference->Use(*id);
  }
  return hit_count;
}

class PaperPolicies : public testing::TestWithParam<uint32_t> {};

template <typename ReferencePolicy>
void ExpectAgreement(std::string_view name, uint32_t seed, std::vector<uint32_t> capacities) {
  DenseTrace trace;
  std::string why;
  ASSERT_TRUE(trace.Build(MakeRandomTrace(seed, 400), &why)) << why;
  for (const uint32_t capacity : capacities) {
    SCOPED_TRACE(testing::Message() << name << ", seed " << seed << ", " << capacity << " blocks");
    const auto policy = MakeComparedPolicy(name, capacity);
    ReplayCache cache(trace, {.capacity_blocks = capacity, .order = EvictionOrder::kFree}, *policy);
    uint64_t hit_count = 0;
    for (size_t r = 0; r < trace.request_count(); ++r) hit_count += cache.Serve(r);
    ReferencePolicy reference(capacity);
    EXPECT_EQ(hit_count, CountReferenceHits(trace, capacity, &reference));
    for (BlockId id = 0; id < trace.unique_count(); ++id) {
      ASSERT_EQ(cache.is_resident(id), reference.Contains(id)) << "block " << id;
    }
  }
}

TEST_P(PaperPolicies, SieveAgreesWithAHandOnAList) {
  ExpectAgreement<ReferenceSieve>("sieve", GetParam(), {1, 2, 7, 40, 200, 100000});
}

TEST_P(PaperPolicies, S3FifoAgreesWithThreeQueues) {
  ExpectAgreement<ReferenceS3Fifo>("s3fifo", GetParam(), {1, 2, 7, 40, 200, 100000});
}

TEST_P(PaperPolicies, ArcAgreesWithFourLists) {
  ExpectAgreement<ReferenceArc>("arc", GetParam(), {1, 2, 7, 40, 200, 100000});
}

TEST_P(PaperPolicies, WTinyLfuAgreesWithThreeLists) {
  ExpectAgreement<ReferenceWTinyLfu>("wtinylfu", GetParam(), {1, 2, 7, 40, 200, 500, 100000});
}

INSTANTIATE_TEST_SUITE_P(Seeds, PaperPolicies, testing::Range(1u, 11u));

}  // namespace
}  // namespace terrace::tools
