#include "tiers/redis/owed_erasures.h"

#include <algorithm>
#include <unordered_set>
#include <utility>

#include "terrace/check.h"

namespace terrace {
namespace {

// So many that are not to be asked now are passed over in one call.
constexpr size_t kPassedMax = 4096;

}  // namespace

// ---- what is owed ----

uint64_t OwedErasures::TagOf(const RedisBlockName& name) {
  return name.key.low ^ name.key.high * 3 ^ name.space.low * 0x9E3779B97F4A7C15;
}

bool OwedErasures::MayBeLate(const RedisBlockName& name, uint64_t now_us) const {
  return now_us < settled_us_ || lost_.contains(TagOf(name));
}

const OwedErasures::Owed* OwedErasures::FindInAnyGroup(const BlockKey& key) const {
  if (in_any_group_count_ == 0) return nullptr;
  const auto found = blocks_.find({GroupId(), key});
  return found == blocks_.end() ? nullptr : &found->second;
}

const OwedErasures::Owed* OwedErasures::FindNews(const RedisBlockName& name,
                                                 Blocks::const_iterator found) const {
  const Owed* const any = FindInAnyGroup(name.key);
  if (any == nullptr) return nullptr;
  return found == blocks_.end() || found->second.turn != any->turn ? any : nullptr;
}

OwedErasures::Owed* OwedErasures::Open(const Key& key, Scope scope, const Times& times) {
  const bool is_by_key = scope == Scope::kKey;
  auto found = blocks_.find(key);
  if (found == blocks_.end()) {
    if (blocks_.size() >= kBlocksMax) return nullptr;
    found = blocks_.try_emplace(key).first;
    in_any_group_count_ += key.group.is_zero() ? 1 : 0;
  }
  Owed& owed = found->second;
  // What is kept of it says that nothing is owed.
  if (std::exchange(owed.is_settled, false)) owed.revision = 0;
  const bool is_unsafe = owed.number != 0 && unsafe_.contains(owed.number);
  const bool is_kept = owed.revision != 0 && owed.revision <= kept_revision_;
  // An erasure before that is not safe yet is waited for by whoever waits for this one.
  if (!is_unsafe) owed.number = ++begun_;
  if (!is_unsafe && !is_kept) unsafe_[owed.number] = owed.revision;
  is_changed_ = is_changed_ || (is_by_key && !owed.is_to_keep) || owed.is_to_keep;
  const uint64_t since_us = is_unsafe ? owed.times.now_us : times.now_us;
  owed.times = times;
  owed.times.now_us = since_us;
  owed.is_by_key = owed.is_by_key || is_by_key;
  owed.is_to_keep = owed.is_to_keep || is_by_key;
  return &owed;
}

bool OwedErasures::Add(const RedisBlockName& name, Scope scope, const Times& times) {
  const bool is_by_key = scope == Scope::kKey;
  Owed* const owed = Open({name.group, name.key}, scope, times);
  if (owed == nullptr) return false;
  if (is_by_key) {
    EraseAgain(owed, times.now_us);
    const Owed* const any = FindInAnyGroup(name.key);
    if (any != nullptr) owed->turn = any->turn;
  }
  bool has_room = AddName(owed, name, times.now_us);
  if (is_by_key && name.run != name.key) {
    has_room = AddName(owed, name.Alone(), times.now_us) && has_room;
  }
  return has_room || owed->is_by_key;
}

size_t OwedErasures::CountNewInAnyGroup(std::span<const BlockKey> keys) const {
  std::unordered_set<BlockKey> fresh;
  for (const BlockKey& key : keys) {
    if (FindInAnyGroup(key) == nullptr) fresh.insert(key);
  }
  return fresh.size();
}

bool OwedErasures::AddInAnyGroup(const BlockKey& key, const Times& times) {
  TERRACE_CHECK(
      in_any_group_count_ < kInAnyGroupMax || key.is_zero() || FindInAnyGroup(key) != nullptr,
      "what is owed in any group leaves room for groups");
  Owed* const owed = Open({GroupId(), key}, Scope::kKey, times);
  if (owed != nullptr) owed->turn = ++turns_;
  return owed != nullptr;
}

void OwedErasures::EraseAgain(Owed* owed, uint64_t now_us) {
  for (Named& named : owed->names) {
    named.is_again = named.state == State::kAsked;
    if (named.state != State::kErased) continue;
    SetState(&named, State::kDue);
    named.due_us = now_us;
    named.is_late = MayBeLate(named.name, now_us);
  }
}

bool OwedErasures::AddName(Owed* owed, const RedisBlockName& name, uint64_t now_us) {
  Named* named = Find(*owed, name);
  // Whoever erases it all the time does not have it wait for that.
  if (named != nullptr && named->state != State::kErased) {
    named->is_again = named->state == State::kAsked;
    return true;
  }
  if (named == nullptr) {
    if (name_count_ >= kNamesMax) return false;
    ++name_count_;
    ++names_owed_;
    named = &owed->names.emplace_back(Named{.name = name});
    named->name.generation = 0;
    due_.push_back(named->name);
  } else {
    SetState(named, State::kDue);
  }
  named->due_us = now_us;
  named->is_late = MayBeLate(name, now_us);
  return true;
}

void OwedErasures::Restore(const KeptErasure& kept, const Times& times) {
  const bool is_of_any = kept.group.is_zero();
  const Owed* const any = is_of_any ? nullptr : FindInAnyGroup(kept.key);
  const bool is_settled = kept.until_s == 0;
  if (blocks_.size() >= kBlocksMax || (is_settled && any == nullptr)) return;
  if (is_of_any && in_any_group_count_ >= kInAnyGroupMax && !kept.key.is_zero()) return;
  const auto [block, is_new] = blocks_.try_emplace({kept.group, kept.key});
  block->second = {.times = is_settled ? any->times : times,
                   .turn = any == nullptr ? 0 : any->turn,
                   .is_by_key = true,
                   .is_to_keep = true,
                   .is_settled = is_settled};
  if (!is_of_any) return;
  block->second.turn = ++turns_;
  in_any_group_count_ += is_new ? 1 : 0;
}

bool OwedErasures::IsOwed(const RedisBlockName& name) const {
  if (blocks_.empty()) return false;
  const auto found = blocks_.find({name.group, name.key});
  if (FindNews(name, found) != nullptr) return true;
  if (found == blocks_.end() || found->second.is_settled) return false;
  const Named* const named = Find(found->second, name);
  return named == nullptr || named->state != State::kErased;
}

void OwedErasures::Name(const RedisBlockName& name, uint64_t now_us) {
  auto found = blocks_.find({name.group, name.key});
  if (const Owed* const any = FindNews(name, found); any != nullptr) {
    if (found == blocks_.end()) {
      // Without room it stays out of reach.
      if (blocks_.size() >= kBlocksMax) return;
      found = blocks_.try_emplace({name.group, name.key}).first;
    }
    Owed& owed = found->second;
    owed.times = any->times;
    owed.turn = any->turn;
    owed.is_by_key = owed.is_to_keep = is_changed_ = true;
    owed.is_settled = false;
    EraseAgain(&owed, now_us);
  }
  if (found == blocks_.end() || found->second.is_settled) return;
  const bool has_room =
      name_count_ < kNamesAskedMax && found->second.names.size() < kNamesOfBlockMax;
  if (Find(found->second, name) != nullptr || !has_room) return;
  AddName(&found->second, name, now_us);
}

void OwedErasures::NoteStored(const RedisBlockName& name) {
  if (blocks_.empty()) return;
  const auto found = blocks_.find({name.group, name.key});
  if (found == blocks_.end() || !IsTold(found->second)) return;
  if (Find(found->second, name) == nullptr) return;
  if (FindInAnyGroup(name.key) == nullptr) {
    Remove(found);
    return;
  }
  // Of what is erased in any group it has to be known that here it was.
  Owed& owed = found->second;
  name_count_ -= owed.names.size();
  owed.names.clear();
  owed.is_settled = owed.is_to_keep = is_changed_ = true;
}

void OwedErasures::NoteLost(const RedisBlockName& name) {
  const uint64_t tag = TagOf(name);
  ++lost_[tag];
  lost_order_.push_back(tag);
  if (lost_order_.size() > kLostMax) {
    const auto oldest = lost_.find(lost_order_.front());
    if (--oldest->second == 0) lost_.erase(oldest);
    lost_order_.pop_front();
  }
  const auto found = blocks_.find({name.group, name.key});
  if (found == blocks_.end()) return;
  if (Named* const named = Find(found->second, name); named != nullptr) named->is_late = true;
}

void OwedErasures::NoteReady(uint64_t now_us) {
  if (settled_us_ == UINT64_MAX) settled_us_ = now_us + kSettleUs;
}

// ---- telling the server ----

void OwedErasures::SetState(Named* named, State state) {
  names_owed_ -= named->state == State::kErased ? 0 : 1;
  names_owed_ += state == State::kErased ? 0 : 1;
  named->state = state;
  if (state == State::kDue) due_.push_back(named->name);
}

std::vector<RedisBlockName> OwedErasures::TakeDue(
    uint64_t now_us, size_t names_max, const std::function<bool(const RedisBlockName&)>& may_ask) {
  std::vector<RedisBlockName> taken;
  size_t passed_count = 0;
  for (size_t left = due_.size(); left > 0 && taken.size() < names_max; --left) {
    const RedisBlockName name = due_.front();
    due_.pop_front();
    const auto found = blocks_.find({name.group, name.key});
    Named* const named = found == blocks_.end() ? nullptr : Find(found->second, name);
    if (named == nullptr || named->state != State::kDue) continue;
    const bool is_other_group = !taken.empty() && taken.front().group != name.group;
    if (named->due_us > now_us || is_other_group || !may_ask(name)) {
      due_.push_back(name);
      if (++passed_count == kPassedMax) break;
      continue;
    }
    SetState(named, State::kAsked);
    taken.push_back(name);
  }
  return taken;
}

void OwedErasures::EndAsked(const RedisBlockName& name, bool is_erased, uint64_t now_us) {
  const auto found = blocks_.find({name.group, name.key});
  Named* const named = found == blocks_.end() ? nullptr : Find(found->second, name);
  if (named == nullptr || named->state != State::kAsked) return;
  Owed& owed = found->second;
  const bool is_again = std::exchange(named->is_again, false);
  if (is_erased && !named->is_late && !is_again) {
    SetState(named, State::kErased);
    if (!IsTold(owed)) return;
    if (owed.is_by_key) {
      is_changed_ = true;  // a successor need not know of it for so long any more
    } else {
      Remove(found);
    }
    return;
  }
  named->due_us = now_us;
  if (!is_erased) {
    named->due_us += kRetryUs;
    is_changed_ = is_changed_ || !owed.is_to_keep;
    owed.is_to_keep = true;
  } else if (named->is_late) {
    named->due_us += kSettleUs;
    named->is_late = false;
  }
  SetState(named, State::kDue);
}

size_t OwedErasures::blocks_owed() const {
  if (names_owed_ == 0) return 0;
  const auto is_owed = [](const Named& named) { return named.state != State::kErased; };
  return static_cast<size_t>(std::ranges::count_if(blocks_, [&](const auto& block) {
    return std::ranges::any_of(block.second.names, is_owed);
  }));
}

OwedErasures::Blocks::iterator OwedErasures::Remove(Blocks::iterator block) {
  const Owed& owed = block->second;
  name_count_ -= owed.names.size();
  names_owed_ -= static_cast<size_t>(std::ranges::count_if(
      owed.names, [](const Named& one) { return one.state != State::kErased; }));
  unsafe_.erase(owed.number);
  in_any_group_count_ -= block->first.group.is_zero() ? 1 : 0;
  is_changed_ = is_changed_ || owed.revision != 0 || owed.is_to_keep;
  return blocks_.erase(block);
}

void OwedErasures::ReplaceGroup(const GroupId& group, uint64_t revision) {
  for (auto block = blocks_.begin(); block != blocks_.end();) {
    if (block->first.group != group) {
      ++block;
      continue;
    }
    const uint64_t number = block->second.number;
    const bool is_unsafe = unsafe_.contains(number);
    block = Remove(block);
    if (is_unsafe) unsafe_[number] = revision;
  }
}

GroupId OwedErasures::LargestGroup() const {
  std::map<GroupId, size_t> counts;
  for (const auto& [key, owed] : blocks_) {
    if (!key.group.is_zero()) counts[key.group] += owed.names.size() + 1;
  }
  TERRACE_CHECK(!counts.empty(), "a group is forgotten for what is owed of it");
  return std::ranges::max_element(counts, {}, [](const auto& one) { return one.second; })->first;
}

void OwedErasures::Age(uint64_t now_us, uint64_t patience_us) {
  for (auto block = blocks_.begin(); block != blocks_.end();) {
    Owed& owed = block->second;
    if (now_us >= owed.times.until_us && IsTold(owed)) {
      block = Remove(block);
      continue;
    }
    if (!owed.is_to_keep && now_us >= owed.times.now_us + patience_us) {
      owed.is_to_keep = is_changed_ = true;
    }
    ++block;
  }
}

// ---- what is kept ----

std::vector<KeptErasure> OwedErasures::TakeKept(uint64_t revision) {
  std::vector<KeptErasure> kept;
  for (auto& [key, owed] : blocks_) {
    if (!owed.is_to_keep) continue;
    const bool is_told = !owed.names.empty() && IsTold(owed);
    const uint64_t until_s = is_told ? owed.times.until_s : owed.times.until_s_untold;
    kept.push_back({key.group, key.key, owed.is_settled ? 0 : until_s});
    if (owed.revision != 0) continue;
    owed.revision = revision;
    if (const auto found = unsafe_.find(owed.number); found != unsafe_.end()) {
      found->second = revision;
    }
  }
  is_changed_ = false;
  return kept;
}

void OwedErasures::OnKept(uint64_t revision) {
  kept_revision_ = std::max(kept_revision_, revision);
  std::erase_if(
      unsafe_, [this](const auto& one) { return one.second != 0 && one.second <= kept_revision_; });
}

}  // namespace terrace
