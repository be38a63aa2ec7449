#include "daemon/block/kv_event_source.h"

#include <algorithm>

namespace terrace {
namespace {

constexpr uint32_t kTurn = protocol::kBlocksPerTurnMax;

constexpr uint8_t BitOf(KvEventMedium medium) {
  return static_cast<uint8_t>(1u << static_cast<uint32_t>(medium));
}

}  // namespace

uint8_t KvEventSource::MediaServed() const {
  if (d_.serving != protocol::ServingMode::kServing) return 0;
  const auto is_on = [&](uint32_t tier) {
    return tier != kLowerTiersMax && !d_.lower[tier].is_off;
  };
  uint8_t media = BitOf(KvEventMedium::kDram) | BitOf(KvEventMedium::kShared);
  if (is_on(d_.persistent_tier)) media |= BitOf(KvEventMedium::kPersistent);
  if (is_on(d_.device_tier)) media |= BitOf(KvEventMedium::kDevice);
  return media;
}

void KvEventSource::LookAtServing() {
  const uint8_t served = MediaServed();
  if (sink_ == nullptr || served == served_) return;
  served_ = served;
  if (d_.index.id_count() > 0) {
    late_block_ = 0;
    served_changed_ = true;
  }
  if (d_.shared_copies.number_end() > 0) late_copy_ = 0;
}

uint8_t KvEventSource::PlacesOf(const Block& block) const {
  if (block.phase != BlockPhase::kSealed) return 0;
  const auto is_in = [&](uint32_t tier) {
    return tier != kLowerTiersMax && block.lower[tier].is_readable();
  };
  uint8_t places = 0;
  if (block.dram.is_readable() || block.is_adopted()) places |= BitOf(KvEventMedium::kDram);
  if (is_in(d_.persistent_tier)) places |= BitOf(KvEventMedium::kPersistent);
  if (is_in(d_.device_tier)) places |= BitOf(KvEventMedium::kDevice);
  return places & served_;
}

void KvEventSource::Tell(BlockId id) {
  uint8_t& told = ToldOf(id);
  const uint8_t places = PlacesOf(d_.block(id));
  const uint8_t before = told;
  if (places == before) return;
  told = places;
  if (id >= next_block_) return;
  const uint8_t come = places & ~before;
  if (HasRoom(1)) {
    Send(id, come, KvEvent::Kind::kStored);
  } else if (come != 0) {
    told &= ~come;
    late_block_ = std::min(late_block_, id);
  }
  Send(id, before & ~places, KvEvent::Kind::kRemoved);
}

void KvEventSource::Send(BlockId id, uint8_t places, KvEvent::Kind kind) {
  if (places == 0) return;
  const Block& block = d_.block(id);
  KvEvent event{
      .hash = block.event_hash, .stream = d_.group_of(block).kv_event_stream, .kind = kind};
  if (kind == KvEvent::Kind::kStored) {
    const BlockId parent = d_.index.node(id).parent;
    if (parent != kBlockNone) event.parent_hash = d_.block(parent).event_hash;
  }
  for (uint32_t medium = 0; medium < kKvEventMediumCount; ++medium) {
    event.medium = static_cast<KvEventMedium>(medium);
    if (places & BitOf(event.medium)) sink_->Publish({&event, 1});
  }
}

// Medium by medium: what is alike and told in a row becomes one event.
void KvEventSource::TellLeft(BlockRange range) {
  const BlockId end = range.first + range.block_count;
  const uint32_t stream = d_.group_of(d_.block(range.first)).kv_event_stream;
  for (uint32_t medium = 0; medium < kKvEventMediumCount; ++medium) {
    leaving_.clear();
    for (BlockId id = end; id-- > range.first;) {
      uint8_t& told = ToldOf(id);
      if ((told & BitOf(static_cast<KvEventMedium>(medium))) == 0) continue;
      told &= ~BitOf(static_cast<KvEventMedium>(medium));
      if (id >= next_block_) continue;
      leaving_.push_back({.hash = d_.block(id).event_hash,
                          .stream = stream,
                          .kind = KvEvent::Kind::kRemoved,
                          .medium = static_cast<KvEventMedium>(medium)});
    }
    if (!leaving_.empty()) sink_->Publish(leaving_);
  }
}

// ---- the tier that hosts share ----

void KvEventSource::OnSharedCopy(uint32_t number) {
  const SharedCopies::Copy* const copy = d_.shared_copies.at(number);
  if (copy == nullptr || copy->is_told || copy->event_hash == 0) return;
  if ((served_ & BitOf(KvEventMedium::kShared)) == 0) return;
  if (number < next_copy_ && !HasRoom(1)) {
    late_copy_ = std::min(late_copy_, number);
    return;
  }
  d_.shared_copies.SetTold(number, true);
  if (number < next_copy_) SendCopy(*copy, KvEvent::Kind::kStored);
}

void KvEventSource::OnSharedCopyGone(uint32_t number) {
  const SharedCopies::Copy& copy = d_.shared_copies.last(number);
  if (copy.is_told && number < next_copy_) SendCopy(copy, KvEvent::Kind::kRemoved);
}

void KvEventSource::SendCopy(const SharedCopies::Copy& copy, KvEvent::Kind kind) {
  const KvEvent event{.hash = copy.event_hash,
                      .parent_hash = kind == KvEvent::Kind::kStored ? copy.parent_hash : 0,
                      .stream = copy.stream,
                      .kind = kind,
                      .medium = KvEventMedium::kShared};
  sink_->Publish({&event, 1});
}

// ---- in turns ----

void KvEventSource::Republish() {
  if (sink_ == nullptr) return;
  next_block_ = d_.index.id_count() > 0 ? 0 : kBlockNone;
  next_copy_ = d_.shared_copies.number_end() > 0 ? 0 : SharedCopies::kNone;
}

bool KvEventSource::Step() {
  if (!has_work() || !HasRoom(kTurn)) return false;
  if (next_block_ != kBlockNone || (late_block_ != kBlockNone && !has_anew())) {
    StepBlocks();
  } else {
    StepCopies();
  }
  return true;
}

void KvEventSource::StepBlocks() {
  const bool is_anew = next_block_ != kBlockNone;
  BlockId& next = is_anew ? next_block_ : late_block_;
  const uint32_t count = d_.index.id_count();
  for (uint32_t i = 0; i < kTurn && next < count; ++i) {
    const BlockId id = next++;
    if (is_anew) {
      Send(id, d_.block(id).kv_event_places, KvEvent::Kind::kStored);
    } else {
      OnChange(id);
    }
  }
  if (next < count) return;
  next = kBlockNone;
  if (!is_anew) served_changed_ = false;
}

void KvEventSource::StepCopies() {
  const bool is_anew = next_copy_ != SharedCopies::kNone;
  uint32_t& next = is_anew ? next_copy_ : late_copy_;
  const uint32_t count = d_.shared_copies.number_end();
  for (uint32_t i = 0; i < kTurn && next < count; ++i) {
    const uint32_t number = next++;
    const SharedCopies::Copy* const copy = d_.shared_copies.at(number);
    if (copy == nullptr) {
      if (is_anew) d_.shared_copies.SetTold(number, false);
    } else if (copy->is_told && (served_ & BitOf(KvEventMedium::kShared)) == 0) {
      if (!is_anew) SendCopy(*copy, KvEvent::Kind::kRemoved);
      d_.shared_copies.SetTold(number, false);
    } else if (is_anew && copy->is_told) {
      SendCopy(*copy, KvEvent::Kind::kStored);
    } else {
      OnSharedCopy(number);
    }
  }
  if (next >= count) next = SharedCopies::kNone;
}

}  // namespace terrace
