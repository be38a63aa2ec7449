#include "daemon/index/tree_walk.h"

#include "terrace/check.h"

namespace terrace {

// A cursor is the walk's place + 1 below its stamp.
static constexpr uint32_t kStampShift = 32;

uint64_t TreeWalks::Open(WalkScope scope) {
  uint32_t place = 0;
  for (uint32_t i = 0; i < kWalksMax; ++i) {
    if (!walks_[i].is_used) {
      place = i;
      break;
    }
    if (walks_[i].used_at < walks_[place].used_at) place = i;
  }
  if (!walks_[place].is_used) ++open_count_;
  walks_[place] = Walk{
      .is_used = true, .stamp = ++stamp_count_, .used_at = ++use_count_, .scope = std::move(scope)};
  walks_[place].group_index = walks_[place].scope.group_first;
  return (uint64_t{walks_[place].stamp} << kStampShift) | (place + 1);
}

uint32_t TreeWalks::PlaceOf(uint64_t cursor) const {
  const uint64_t place = (cursor & 0xFFFFFFFF) - 1;
  if (place >= kWalksMax || !walks_[place].is_used) return kWalksMax;
  return walks_[place].stamp == cursor >> kStampShift ? static_cast<uint32_t>(place) : kWalksMax;
}

bool TreeWalks::IsOpen(uint64_t cursor) const { return PlaceOf(cursor) != kWalksMax; }

void TreeWalks::Close(uint64_t cursor) {
  if (!IsOpen(cursor)) return;
  walks_[PlaceOf(cursor)].is_used = false;
  --open_count_;
}

// On to the next root or group that has blocks. False: there is none left.
bool TreeWalks::NextTree(Walk* walk) {
  if (!walk->scope.roots.empty()) {
    if (walk->next_root == walk->scope.roots.size()) return false;
    const WalkScope::Root& root = walk->scope.roots[walk->next_root++];
    walk->at = walk->limit = index_.Find(root.group_index, root.key);
  } else {
    if (walk->group_index >= walk->scope.group_end) return false;
    walk->at = index_.first_root(walk->group_index++);
  }
  if (walk->at != kBlockNone) {
    const bool is_down = walk->scope.order == WalkOrder::kChildrenFirst;
    walk->phase = is_down ? Phase::kDown : Phase::kVisit;
  }
  return true;
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
        if (!NextTree(walk)) {
          *is_done = true;
          return kBlockNone;
        }
        break;
      case Phase::kDown:
        if (is_past && is_past(at)) {
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
