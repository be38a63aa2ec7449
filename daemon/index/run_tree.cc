#include "daemon/index/run_tree.h"

#include <algorithm>
#include <utility>

#include "terrace/check.h"

namespace terrace {
namespace {

constexpr uint32_t kPlacesPerChild = 8;    // moving a block to another run, against moving a child
constexpr uint32_t kChildrenMovedMax = 2;  // one by one; more are orphaned together

}  // namespace

// ---- blocks ----

void RunTree::Begin(BlockId id, uint32_t group_index, uint32_t position, BlockId parent) {
  TERRACE_CHECK(parent == kBlockNone || IsLive(parent), "edges join live blocks");
  if (group_index >= groups_.size()) groups_.resize(group_index + 1);
  ++groups_[group_index].block_count;
  ++live_count_;
  const uint64_t touched_us = parent == kBlockNone ? 0 : runs_[RunOf(parent)].touched_us;
  const RunId run =
      NewRun({.first = id, .block_count = 1, .position = position, .touched_us = touched_us});
  places_[id] = {.run = run, .group_index = group_index};
  LinkInto(run, parent != kBlockNone && MayFollow(run, parent) ? RunUpTo(parent) : kRunNone);
}

RunId RunTree::RunUpTo(BlockId id) {
  if (runs_[RunOf(id)].last() != id) CutBefore(id + 1);
  return RunOf(id);
}

bool RunTree::MayFollow(RunId below, BlockId parent) const {
  const Run& run = runs_[below];
  const Run& above = RunAt(parent);
  return places_[run.first].group_index == places_[parent].group_index &&
         run.position == above.position + (parent - above.first) + 1;
}

bool RunTree::Link(BlockId child, BlockId parent) {
  TERRACE_CHECK(IsLive(child) && IsLive(parent), "edges join live blocks");
  const RunId below = RunOf(child);
  if (runs_[below].first != child || ParentOf(runs_[below]) != kRunNone ||
      !MayFollow(below, parent)) {
    return false;
  }
  const RunId above = RunUpTo(parent);
  Unlink(below);
  LinkInto(below, above);
  JoinWithChild(above);
  return true;
}

void RunTree::Erase(BlockId id) {
  TERRACE_CHECK(IsLive(id), "only a live block is erased");
  RunId at = RunOf(id);
  if (runs_[at].last() != id) {
    CutBefore(id + 1);
    at = RunOf(id);
  }
  if (runs_[at].child_count > kChildrenMovedMax) {
    if (runs_[at].block_count > 1) CutBefore(id);
    at = RunOf(id);
  } else {
    while (runs_[at].first_child != kRunNone) {
      const RunId child = runs_[at].first_child;
      Unlink(child);
      LinkInto(child, kRunNone);
    }
  }
  if (runs_[at].block_count == 1) {
    const RunId above = ParentOf(runs_[at]);
    Unlink(at);
    if (runs_[at].first_child != kRunNone) at = OrphanChildren(at);
    if (above != kRunNone) JoinWithChild(above);
  } else {
    Run& run = runs_[at];
    const uint32_t position = run.position + --run.block_count;
    at = NewRun({.first = id,
                 .block_count = 1,
                 .position = position,
                 .touched_us = run.touched_us,
                 .pin_count = run.pin_count});
  }
  places_[id].run = at | kErasedBit;
  --groups_[places_[id].group_index].block_count;
  --live_count_;
}

void RunTree::Recycle(BlockId id) {
  TERRACE_CHECK((places_[id].run & kErasedBit) != 0, "an erased id is recycled");
  TERRACE_CHECK(RunAt(id).pin_count == 0, "I2: what is pinned is not given to another block");
  FreeRun(RunOf(id));
  places_[id] = {};
}

void RunTree::EraseTail(BlockRange tail) {
  const BlockId last = tail.first + tail.block_count - 1;
  TERRACE_CHECK(tail.block_count > 0 && IsLive(last), "only live blocks are erased");
  const RunId at = RunOf(last);
  Run& run = runs_[at];
  TERRACE_CHECK(run.last() == last && run.child_count == 0 && run.pin_count == 0 &&
                    tail.block_count <= run.block_count,
                "a tail is the end of a run that nobody holds and nothing follows");
  groups_[places_[last].group_index].block_count -= tail.block_count;
  live_count_ -= tail.block_count;
  run.block_count -= tail.block_count;
  if (run.block_count == 0) {
    run.block_count = 1;  // its siblings' head is found by its first block
    const RunId above = ParentOf(run);
    Unlink(at);
    FreeRun(at);
    if (above != kRunNone) JoinWithChild(above);
  }
  std::fill_n(&places_[tail.first], tail.block_count, Place{});
}

// ---- runs ----

RunId RunTree::NewRun(const Run& run) {
  ++run_count_;
  RunId id = run_id_count_;
  if (free_runs_.empty()) {
    runs_.Reach(run_id_count_++);
  } else {
    id = free_runs_.back();
    free_runs_.pop_back();
  }
  runs_[id] = run;
  return id;
}

void RunTree::FreeRun(RunId run) {
  --run_count_;
  runs_[run] = {};
  free_runs_.push_back(run);
}

void RunTree::Renumber(RunId run, BlockId first, uint32_t block_count) {
  for (BlockId id = first; id < first + block_count; ++id) places_[id].run = run;
}

RunId& RunTree::HeadOfSiblings(const Run& run) {
  const RunId parent = ParentOf(run);
  return parent == kRunNone ? groups_[places_[run.first].group_index].first_root
                            : runs_[parent].first_child;
}

void RunTree::LinkInto(RunId id, RunId parent) {
  Run& run = runs_[id];
  run.parent = parent;
  RunId& head = HeadOfSiblings(run);
  run.next_sibling = head;
  run.previous_sibling = id;
  if (head != kRunNone) run.previous_sibling = std::exchange(runs_[head].previous_sibling, id);
  head = id;
  if (parent != kRunNone) ++runs_[parent].child_count;
}

void RunTree::Unlink(RunId id) {
  Run& run = runs_[id];
  RunId& head = HeadOfSiblings(run);
  if (run.next_sibling != kRunNone) {
    runs_[run.next_sibling].previous_sibling = run.previous_sibling;
  } else if (head != id) {
    runs_[head].previous_sibling = run.previous_sibling;
  }
  if (head == id) {
    head = run.next_sibling;
  } else {
    runs_[run.previous_sibling].next_sibling = run.next_sibling;
  }
  const RunId parent = run.parent;
  run.parent = run.previous_sibling = run.next_sibling = kRunNone;
  if (parent == kRunNone || --runs_[parent].child_count > 0) return;
  if (runs_[parent].first == kBlockNone) FreeRun(parent);  // the last orphan
}

void RunTree::Replace(RunId from, RunId to) {
  const Run& old = runs_[from];
  Run& run = runs_[to];
  RunId& head = HeadOfSiblings(old);
  run.parent = old.parent;
  run.previous_sibling = old.previous_sibling == from ? to : old.previous_sibling;
  run.next_sibling = old.next_sibling;
  if (run.next_sibling != kRunNone) {
    runs_[run.next_sibling].previous_sibling = to;
  } else if (head != from) {
    runs_[head].previous_sibling = to;
  }
  if (head == from) {
    head = to;
  } else {
    runs_[run.previous_sibling].next_sibling = to;
  }
}

// The run, of one block and out of the tree, becomes what its children name their parent, and they
// become roots. Returns a run for its block.
RunId RunTree::OrphanChildren(RunId at) {
  Run& parent = runs_[at];
  RunId& head = groups_[places_[parent.first].group_index].first_root;
  const RunId first = parent.first_child;
  if (head != kRunNone) {
    const RunId last = runs_[first].previous_sibling;
    runs_[last].next_sibling = head;
    runs_[first].previous_sibling = std::exchange(runs_[head].previous_sibling, last);
  }
  head = first;
  Run erased = parent;
  erased.first_child = kRunNone;
  erased.child_count = 0;
  parent = {.first = kBlockNone, .block_count = 1, .child_count = parent.child_count};
  return NewRun(erased);
}

void RunTree::AdoptChildren(RunId from, RunId to) {
  runs_[to].first_child = runs_[from].first_child;
  runs_[to].child_count = runs_[from].child_count;
  for (RunId child = runs_[to].first_child; child != kRunNone; child = runs_[child].next_sibling) {
    runs_[child].parent = to;
  }
  runs_[from].first_child = kRunNone;
  runs_[from].child_count = 0;
}

// One part keeps the run; of the other every block is told, and of the lower one every child.
void RunTree::CutBefore(BlockId id) {
  const RunId whole = RunOf(id);
  const Run old = runs_[whole];
  const uint32_t head_count = id - old.first;
  const uint32_t tail_count = old.block_count - head_count;
  const Run head{.first = old.first,
                 .block_count = head_count,
                 .position = old.position,
                 .touched_us = old.touched_us,
                 .pin_count = old.pin_count};
  const Run tail{.first = id,
                 .block_count = tail_count,
                 .position = old.position + head_count,
                 .touched_us = old.touched_us,
                 .pin_count = old.pin_count};
  if (uint64_t{old.child_count} * kPlacesPerChild + tail_count <= head_count) {
    const RunId lower = NewRun(tail);
    AdoptChildren(whole, lower);
    Renumber(lower, id, tail_count);
    runs_[whole].block_count = head_count;
    LinkInto(lower, whole);
    return;
  }
  const RunId upper = NewRun(head);
  Replace(whole, upper);
  Renumber(upper, old.first, head_count);
  Run& lower = runs_[whole];
  lower.first = tail.first;
  lower.block_count = tail.block_count;
  lower.position = tail.position;
  LinkInto(whole, upper);
}

// Its parent takes its children, or it its parent's place: an only child has no siblings to leave.
void RunTree::Join(RunId above, RunId below) {
  Run& upper = runs_[above];
  Run& lower = runs_[below];
  const uint32_t block_count = upper.block_count + lower.block_count;
  const uint64_t touched_us = std::max(lower.touched_us, upper.touched_us);
  if (uint64_t{lower.child_count} * kPlacesPerChild + lower.block_count <= upper.block_count) {
    AdoptChildren(below, above);
    Renumber(above, lower.first, lower.block_count);
    upper.block_count = block_count;
    upper.touched_us = touched_us;
    FreeRun(below);
    return;
  }
  Replace(above, below);
  Renumber(below, upper.first, upper.block_count);
  lower.first = upper.first;
  lower.position = upper.position;
  lower.block_count = block_count;
  lower.touched_us = touched_us;
  FreeRun(above);
}

// ---- pins and uses ----

template <typename Visit>
void RunTree::ForEachRun(BlockRange range, const Visit& visit) {
  const BlockId end = range.first + range.block_count;
  for (BlockId id = range.first; id < end;) {
    TERRACE_CHECK(!IsFree(id), "I2: only a block is held");
    if (runs_[RunOf(id)].first != id) CutBefore(id);
    if (runs_[RunOf(id)].last() >= end) CutBefore(end);
    Run& run = runs_[RunOf(id)];
    visit(run);
    id = run.last() + 1;
  }
}

// Joins two runs that were cut, where nothing parts them any more.
void RunTree::JoinAlong(BlockRange range) {
  const RunId above = ParentOf(runs_[RunOf(range.first)]);
  if (above != kRunNone) JoinWithChild(above);
  const BlockId last = range.first + range.block_count - 1;
  BlockId id = range.first;
  while (true) {
    while (JoinWithChild(RunOf(id))) {
    }
    const BlockId end = runs_[RunOf(id)].last();
    if (end >= last) return;
    id = end + 1;
  }
}

void RunTree::Pin(BlockRange range) {
  ForEachRun(range, [this](Run& run) {
    if (run.pin_count++ == 0) pinned_count_ += run.block_count;
  });
  JoinAlong(range);
}

void RunTree::Unpin(BlockRange range) {
  ForEachRun(range, [this](Run& run) {
    TERRACE_CHECK(run.pin_count > 0, "I2: every lease lets go once");
    if (--run.pin_count == 0) pinned_count_ -= run.block_count;
  });
  JoinAlong(range);
}

void RunTree::Touch(BlockRange range, uint64_t now_us) {
  const BlockId end = range.first + range.block_count;
  for (BlockId id = range.first; id < end;) {
    if (IsFree(id)) {
      ++id;
      continue;
    }
    if (runs_[RunOf(id)].last() >= end && runs_[RunOf(id)].touched_us + kTouchSlackUs < now_us) {
      CutBefore(end);
    }
    Run& run = runs_[RunOf(id)];
    run.touched_us = std::max(run.touched_us, now_us);
    id = run.last() + 1;
  }
}

// ---- invariants ----

void RunTree::CheckRun(RunId at) const {
  const Run& run = runs_[at];
  const uint32_t group_index = places_[run.first].group_index;
  TERRACE_CHECK(run.block_count > 0 && run.block_count <= kRunBlocksMax, "a run has blocks");
  for (BlockId id = run.first; id <= run.last(); ++id) {
    TERRACE_CHECK(places_[id].run == at && places_[id].group_index == group_index,
                  "a run's blocks are its own and of one group");
  }
  uint32_t child_count = 0;
  RunId previous = run.first_child == kRunNone ? kRunNone : runs_[run.first_child].previous_sibling;
  TERRACE_CHECK(previous == kRunNone || runs_[previous].next_sibling == kRunNone,
                "the first sibling knows the last");
  for (RunId child = run.first_child; child != kRunNone; child = runs_[child].next_sibling) {
    const Run& below = runs_[child];
    TERRACE_CHECK(below.parent == at && below.previous_sibling == previous &&
                      below.position == run.position + run.block_count &&
                      places_[below.first].group_index == group_index,
                  "children know their parent and are one position behind");
    previous = child;
    ++child_count;
  }
  TERRACE_CHECK(child_count == run.child_count, "children are counted");
}

// What is left of runs that were erased with their children, and the runs in use.
void RunTree::CheckOrphans(uint32_t id_count, uint32_t run_count) const {
  std::vector<uint32_t> orphan_counts(run_id_count_);
  for (BlockId id = 0; id < id_count; ++id) {
    if (!IsLive(id) || RunAt(id).first != id) continue;
    const RunId parent = RunAt(id).parent;
    if (parent != kRunNone && runs_[parent].first == kBlockNone) ++orphan_counts[parent];
  }
  for (RunId run = 1; run < run_id_count_; ++run) {
    const bool is_of_orphans = runs_[run].first == kBlockNone && runs_[run].block_count > 0;
    TERRACE_CHECK(orphan_counts[run] == (is_of_orphans ? runs_[run].child_count : 0),
                  "orphans are counted");
    TERRACE_CHECK(!is_of_orphans || orphan_counts[run] > 0, "what is left of a run goes with them");
    run_count += is_of_orphans ? 1 : 0;
  }
  TERRACE_CHECK(run_count == run_count_, "runs are counted");
}

void RunTree::CheckRoots(uint32_t id_count) const {
  uint32_t root_count = 0;
  uint32_t parentless_count = 0;
  for (const Group& group : groups_) {
    for (RunId root = group.first_root; root != kRunNone; root = runs_[root].next_sibling) {
      TERRACE_CHECK(ParentOf(runs_[root]) == kRunNone, "roots have no parent");
      ++root_count;
    }
  }
  for (BlockId id = 0; id < id_count; ++id) {
    if (IsLive(id) && RunAt(id).first == id && ParentOf(RunAt(id)) == kRunNone) ++parentless_count;
  }
  TERRACE_CHECK(root_count == parentless_count, "roots are those without a parent");
}

void RunTree::CheckInvariants(uint32_t id_count, uint32_t used_count) const {
  uint32_t live_count = 0;
  uint32_t pinned_count = 0;
  uint32_t run_count = 0;
  for (BlockId id = 0; id < id_count; ++id) {
    if (IsFree(id)) continue;
    --used_count;
    const Run& run = RunAt(id);
    pinned_count += run.pin_count > 0 ? 1 : 0;
    if (run.first == id) ++run_count;
    if (!IsLive(id)) {
      TERRACE_CHECK(run.first == id && run.block_count == 1, "an erased block is in no tree");
      continue;
    }
    ++live_count;
    if (run.first == id) CheckRun(RunOf(id));
  }
  TERRACE_CHECK(used_count == 0, "ids are live, erased or free");
  TERRACE_CHECK(pinned_count == pinned_count_, "pinned blocks are counted");
  TERRACE_CHECK(live_count == live_count_, "live blocks are counted");
  CheckOrphans(id_count, run_count);
  CheckRoots(id_count);
}

}  // namespace terrace
