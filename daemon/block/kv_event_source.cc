#include "daemon/block/kv_event_source.h"

#include <algorithm>

namespace terrace {
namespace {

constexpr uint8_t BitOf(KvEventMedium medium) {
  return static_cast<uint8_t>(1u << static_cast<uint32_t>(medium));
}

}  // namespace

uint8_t KvEventSource::PlacesOf(const Block& block) const {
  if (block.phase != BlockPhase::kSealed) return 0;
  uint8_t places = 0;
  if (block.dram.is_readable() || block.is_adopted()) places |= BitOf(KvEventMedium::kDram);
  if (d_.persistent_tier != kLowerTiersMax && block.lower[d_.persistent_tier].is_readable()) {
    places |= BitOf(KvEventMedium::kPersistent);
  }
  return places;
}

void KvEventSource::Tell(BlockId id) {
  uint8_t& told = ToldOf(id);
  const uint8_t places = PlacesOf(d_.block(id));
  const uint8_t before = told;
  if (places == before) return;
  told = places;
  Send(id, places & ~before, KvEvent::Kind::kStored);
  Send(id, before & ~places, KvEvent::Kind::kRemoved);
}

void KvEventSource::Send(BlockId id, uint8_t places, KvEvent::Kind kind) {
  if (places == 0) return;
  const Block& block = d_.block(id);
  KvEvent event{
      .hash = block.event_hash, .stream = d_.group_of(block).kv_event_stream, .kind = kind};
  if (event.stream == KvEventSink::kStreamNone) return;
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
      leaving_.push_back({.hash = d_.block(id).event_hash,
                          .stream = stream,
                          .kind = KvEvent::Kind::kRemoved,
                          .medium = static_cast<KvEventMedium>(medium)});
      told &= ~BitOf(static_cast<KvEventMedium>(medium));
    }
    if (!leaving_.empty() && stream != KvEventSink::kStreamNone) sink_->Publish(leaving_);
  }
}

void KvEventSource::Republish() {
  if (sink_ != nullptr && d_.index.id_count() > 0) next_ = 0;
}

void KvEventSource::Step() {
  constexpr uint32_t kTurn = protocol::kBlocksPerTurnMax;
  if (!has_work() || !sink_->HasRoom(size_t{kTurn} * kKvEventMediumCount)) return;
  const uint32_t count = d_.index.id_count();
  const uint32_t end = std::min(count, next_ + kTurn);
  for (; next_ < end; ++next_) Send(next_, d_.block(next_).kv_event_places, KvEvent::Kind::kStored);
  if (next_ >= count) next_ = kBlockNone;
}

}  // namespace terrace
