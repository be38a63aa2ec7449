#include "daemon/index/tree_walk.h"

#include <algorithm>
#include <utility>

#include "terrace/check.h"

namespace terrace {

// A cursor is the walk's place + 1 below its stamp.
static constexpr uint32_t kStampShift = 32;

uint32_t TreeWalks::PlaceFor(WalkUse use) {
  const auto count = static_cast<uint32_t>(walks_.size());
  const uint32_t first = use == WalkUse::kCursor ? 0 : kWalksMax;
  const uint32_t end = use == WalkUse::kCursor ? kWalksMax : count;
  for (uint32_t i = first; i < end; ++i) {
    if (!walks_[i].is_used) return i;
  }
  if (use == WalkUse::kOperation) {
    walks_.emplace_back();
    return count;
  }
  const auto longest_unused =
      std::min_element(walks_.begin(), walks_.begin() + kWalksMax,
                       [](const Walk& a, const Walk& b) { return a.used_at < b.used_at; });
  return static_cast<uint32_t>(longest_unused - walks_.begin());
}

uint64_t TreeWalks::Open(WalkScope scope, WalkUse use) {
  const uint32_t place = PlaceFor(use);
  if (!walks_[place].is_used) ++open_count_;
  walks_[place] = Walk{
      .is_used = true, .stamp = ++stamp_count_, .used_at = ++use_count_, .scope = std::move(scope)};
  walks_[place].group_index = walks_[place].scope.group_first;
  return (uint64_t{walks_[place].stamp} << kStampShift) | (place + 1);
}

uint32_t TreeWalks::PlaceOf(uint64_t cursor) const {
  const uint64_t place = (cursor & 0xFFFFFFFF) - 1;
  const auto none = static_cast<uint32_t>(walks_.size());
  if (place >= none || !walks_[place].is_used) return none;
  return walks_[place].stamp == cursor >> kStampShift ? static_cast<uint32_t>(place) : none;
}

bool TreeWalks::IsOpen(uint64_t cursor) const { return PlaceOf(cursor) != walks_.size(); }

void TreeWalks::Close(uint64_t cursor) {
  if (!IsOpen(cursor)) return;
  walks_[PlaceOf(cursor)].is_used = false;
  --open_count_;
}

// On to the next root or group that has blocks. False: there is none left.
bool TreeWalks::NextTree(Walk* walk) {
  const WalkScope& scope = walk->scope;
  const bool has_groups = scope.roots.empty() || !scope.below.empty();
  if (walk->next_root < scope.roots.size()) {
    const WalkScope::Root& root = walk->scope.roots[walk->next_root++];
    walk->at = walk->limit = index_.Find(root.group_index, root.key);
  } else {
    if (!has_groups || walk->group_index >= scope.group_end) return false;
    walk->at = index_.first_root(walk->group_index++);
  }
  if (walk->at != kBlockNone) {
    const bool is_down = walk->scope.order == WalkOrder::kChildrenFirst;
    walk->phase = is_down ? Phase::kDown : Phase::kVisit;
  }
  return true;
}

// At the end of a pass.
bool TreeWalks::BeginAgain(Walk* walk) const {
  if (!walk->scope.goes_again || !walk->is_shaken || walk->pass_count == kPassesMax) return false;
  walk->next_root = 0;
  walk->group_index = walk->scope.group_first;
  walk->is_shaken = false;
  ++walk->pass_count;
  return true;
}

void TreeWalks::Shake() {
  if (open_count_ == 0) return;
  for (Walk& walk : walks_) walk.is_shaken |= walk.is_used && walk.scope.goes_again;
}

// A tree of the groups that is not deep enough, as it begins.
bool TreeWalks::IsLeftOut(const Walk& walk) const {
  if (walk.limit != kBlockNone || walk.scope.below.empty()) return false;
  const RadixIndex::Node& node = index_.node(walk.at);
  return node.parent == kBlockNone &&
         node.position <= walk.scope.below[node.group_index - walk.scope.group_first];
}

// From a block that is done with, as is everything below it.
void TreeWalks::MoveOn(Walk* walk) const {
  const RadixIndex::Node& node = index_.node(walk->at);
  const bool is_down = walk->scope.order == WalkOrder::kChildrenFirst;
  if (walk->at == walk->limit) {
    walk->phase = Phase::kNextTree;
  } else if (node.next_sibling != kBlockNone) {
    walk->at = node.next_sibling;
    walk->phase = is_down ? Phase::kDown : Phase::kVisit;
  } else if (node.parent != kBlockNone) {
    walk->at = node.parent;
    walk->phase = is_down ? Phase::kVisit : Phase::kOn;
  } else {
    walk->phase = Phase::kNextTree;
  }
  if (walk->phase == Phase::kNextTree) walk->at = walk->limit = kBlockNone;
}

BlockId TreeWalks::Next(uint64_t cursor, uint32_t* budget, bool* is_done, const IsPast& is_past) {
  Walk* walk = &walks_[PlaceOf(cursor)];
  walk->used_at = ++use_count_;
  *is_done = false;
  while (*budget > 0) {
    --*budget;
    const BlockId at = walk->at;
    switch (walk->phase) {
      case Phase::kNextTree:
        if (!NextTree(walk) && !BeginAgain(walk)) {
          *is_done = true;
          return kBlockNone;
        }
        break;
      case Phase::kDown:
        if (IsLeftOut(*walk) || (is_past && is_past(at))) {
          MoveOn(walk);
        } else if (index_.node(at).first_child == kBlockNone) {
          walk->phase = Phase::kVisit;
        } else {
          walk->at = index_.node(at).first_child;
        }
        break;
      case Phase::kVisit:
        if (walk->scope.order == WalkOrder::kParentsFirst &&
            index_.node(at).first_child != kBlockNone) {
          walk->at = index_.node(at).first_child;
        } else {
          MoveOn(walk);
        }
        return at;
      case Phase::kOn:
        MoveOn(walk);
        break;
    }
  }
  return kBlockNone;
}

void TreeWalks::OnErase(BlockId id) {
  if (open_count_ == 0) return;
  if (index_.node(id).first_child != kBlockNone) Shake();
  for (Walk& walk : walks_) {
    if (!walk.is_used || walk.at == kBlockNone) continue;
    if (walk.at == id) MoveOn(&walk);
    if (walk.limit == id) {
      // The tree falls apart; what is left of it are roots of their own.
      walk.phase = Phase::kNextTree;
      walk.at = walk.limit = kBlockNone;
    }
  }
}

}  // namespace terrace
