// How far a path is there. A look at a random place of the index waits for memory, several at once
// wait for as long, so the search asks about some positions of the path at once, believes the
// deepest, and goes up from it run by run.
#include <algorithm>
#include <array>

#include "daemon/index/radix_index.h"

namespace terrace {

class RadixIndex::PathSearch {
 public:
  PathSearch(const RadixIndex& index, uint32_t group_index, std::span<const BlockKey> keys,
             std::vector<BlockRange>* path)
      : index_(index), group_index_(group_index), keys_(keys), path_(*path) {}

  uint32_t Run(Proof proof) {
    LookAtSome();
    const BlockId first = Confirm(0);
    if (first == kBlockNone) return 0;
    uint32_t deepest = probe_count_ - 1;
    while (deepest > 0 && Confirm(deepest) == kBlockNone) --deepest;
    PrefetchWindow(deepest);
    if (!Climb(deepest, first)) Restart(first);
    if (proof == Proof::kEveryKey) CompareAll();
    Descend(proof);
    return matched_count_;
  }

 private:
  static constexpr uint32_t kProbesMax = 5;
  static constexpr uint32_t kProbeGapMin = 4;
  static constexpr uint32_t kWindowKeysMax = 64;
  static constexpr uint32_t kScannedKeys = 16;

  struct Probe {
    uint32_t at = 0;  // in keys_
    uint32_t hash = 0;
    uint32_t home = 0;        // of that hash
    BlockId id = kBlockNone;  // the first of that hash; Confirm: of that key
  };

  // The first, the last, and some between: what they will look at is asked for all at once.
  void LookAtSome() {
    const auto last = static_cast<uint32_t>(keys_.size()) - 1;
    const uint32_t gap_count = std::clamp(last / kProbeGapMin, 1u, kProbesMax - 1);
    for (uint32_t i = 0; i <= gap_count; ++i) {
      const auto at = static_cast<uint32_t>(uint64_t{last} * i / gap_count);
      if (i > 0 && at == 0) break;
      Probe& probe = probes_[probe_count_++];
      probe = {.at = at, .hash = index_.table_.HashOf(group_index_, keys_[at])};
      probe.home = index_.table_.Prefetch(probe.hash);
    }
    for (uint32_t i = 0; i < probe_count_; ++i) {
      const BlockId id =
          index_.table_.FindFrom(probes_[i].home, probes_[i].hash, [](BlockId) { return true; });
      probes_[i].id = id;
      if (id == kBlockNone) {
        // A chain ends once. What is behind is not there, or found on the way down.
        probe_count_ = std::max(i, 1u);
        break;
      }
      __builtin_prefetch(&index_.keys_[id]);
      index_.runs_.PrefetchPlace(id);
    }
  }

  BlockId Confirm(uint32_t probe_index) {
    Probe& probe = probes_[probe_index];
    if (probe.id != kBlockNone && !index_.IsBlock(probe.id, group_index_, keys_[probe.at])) {
      probe.id = index_.FindHashed(group_index_, keys_[probe.at], probe.hash);
    }
    if (probe.id != kBlockNone) index_.runs_.PrefetchRun(probe.id);
    return probe.id;
  }

  // What follows the deepest probe, up to where the next one was.
  void PrefetchWindow(uint32_t deepest) {
    const Probe& probe = probes_[deepest];
    const uint32_t left = static_cast<uint32_t>(keys_.size()) - probe.at;
    const uint32_t key_count = std::min(left, kWindowKeysMax);
    for (uint32_t i = kKeysPerLine; i < key_count; i += kKeysPerLine) {
      __builtin_prefetch(&index_.keys_[probe.id] + i);
    }
  }

  // From the block of a probe up its edges. False unless they lead to `first`, in as many steps as
  // there are keys between.
  bool Climb(uint32_t probe_index, BlockId first) {
    BlockId id = probes_[probe_index].id;
    const RunTree::Run* run = &index_.runs_.RunAt(id);
    uint32_t left = probes_[probe_index].at;  // above id
    matched_count_ = left + 1;
    while (true) {
      index_.runs_.PrefetchPlace(run->first);  // whoever pins the path begins there
      const uint32_t above_in_run = id - run->first;
      if (above_in_run >= left) {
        path_.push_back({id - left, left + 1});
        break;
      }
      path_.push_back({run->first, above_in_run + 1});
      run = index_.runs_.Above(*run);
      if (run == nullptr) return false;
      left -= above_in_run + 1;
      id = run->last();
    }
    std::reverse(path_.begin(), path_.end());
    return path_.front().first == first;
  }

  void Restart(BlockId first) {
    path_.assign(1, {first, 1});
    matched_count_ = 1;
  }

  // The path ends where a key is another.
  void CompareAll() {
    for (const BlockRange& range : path_) {
      for (uint32_t i = 0; i < range.block_count; i += kKeysPerLine) {
        __builtin_prefetch(&index_.keys_[range.first + i]);
      }
    }
    uint32_t compared_count = 0;
    for (size_t i = 0; i < path_.size(); ++i) {
      BlockRange& range = path_[i];
      const uint32_t equal_count = CountEqual(range.first, compared_count, range.block_count);
      compared_count += equal_count;
      if (equal_count == range.block_count) continue;
      range.block_count = equal_count;
      path_.resize(equal_count == 0 ? i : i + 1);
      matched_count_ = compared_count;
      return;
    }
  }

  // As far as keys are equal within the run, then on to wherever the next key is.
  void Descend(Proof proof) {
    const auto key_count = static_cast<uint32_t>(keys_.size());
    while (matched_count_ < key_count) {
      const BlockId last = path_.back().first + path_.back().block_count - 1;
      const RunTree::Run& run = index_.runs_.RunAt(last);
      const uint32_t in_run = std::min(run.last() - last, key_count - matched_count_);
      const uint32_t equal_count = proof == Proof::kEveryKey
                                       ? CountEqual(last + 1, matched_count_, in_run)
                                       : CountEqualOfChain(last + 1, matched_count_, in_run);
      path_.back().block_count += equal_count;
      matched_count_ += equal_count;
      if (matched_count_ == key_count) return;
      const BlockId next = index_.Find(group_index_, keys_[matched_count_]);
      if (next == kBlockNone) return;
      Append(next);
    }
  }

  void Append(BlockId id) {
    BlockRange& last = path_.back();
    if (last.first + last.block_count == id) {
      ++last.block_count;
    } else {
      path_.push_back({id, 1});
    }
    ++matched_count_;
  }

  // How many of the keys from `at` are those of the blocks from `id`.
  uint32_t CountEqual(BlockId id, uint32_t at, uint32_t count) const {
    uint32_t equal_count = 0;
    while (equal_count < count && index_.keys_[id + equal_count] == keys_[at + equal_count]) {
      ++equal_count;
    }
    return equal_count;
  }

  // The same of a run and a chain, where what is equal comes first.
  uint32_t CountEqualOfChain(BlockId id, uint32_t at, uint32_t count) const {
    if (count > kScannedKeys && index_.keys_[id + count - 1] == keys_[at + count - 1]) return count;
    uint32_t low = 0;
    while (count - low > kScannedKeys) {
      const uint32_t middle = low + (count - low) / 2;
      (index_.keys_[id + middle] == keys_[at + middle] ? low : count) = middle;
    }
    return low + CountEqual(id + low, at + low, count - low);
  }

  const RadixIndex& index_;
  const uint32_t group_index_;
  const std::span<const BlockKey> keys_;
  std::vector<BlockRange>& path_;
  std::array<Probe, kProbesMax> probes_;
  uint32_t probe_count_ = 0;
  uint32_t matched_count_ = 0;  // of keys_, by path_
};

uint32_t RadixIndex::Match(uint32_t group_index, std::span<const BlockKey> keys, Proof proof,
                           std::vector<BlockRange>* path) const {
  path->clear();
  if (keys.empty()) return 0;
  return PathSearch(*this, group_index, keys, path).Run(proof);
}

}  // namespace terrace
