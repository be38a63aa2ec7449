// KvEventSource: tells routers which blocks of a domain this host can serve, and from where, in the
// engine's own hashes. A block is told of once it is Sealed and once it has gone; a copy whose
// bytes a restart has still to verify counts, for whoever asks for it is served. Of the tier that
// hosts share SharedCopies says what is known, of blocks that are here and of others.
//
// Without room what comes is told later, as it is then; what goes is told at once. A domain that is
// drained or bypassed serves nothing, and a tier that is off nothing of what it has: that is taken
// back in the turns that follow, and told again when it ends.
//
// Blocks whose engine gave them no hash are not told of.
//
// THREADING: store thread.
#pragma once

#include <cstdint>
#include <vector>

#include "daemon/block/cache_domain.h"
#include "daemon/block/kv_event_sink.h"

namespace terrace {

class KvEventSource final : public SharedCopyObserver {
 public:
  // Silent without a sink in the domain's options.
  explicit KvEventSource(CacheDomain& domain)
      : d_(domain), sink_(domain.options.kv_events), served_(MediaServed()) {
    if (sink_ != nullptr) d_.shared_copies.SetObserver(this);
  }

  // The block is not what it was.
  void OnChange(BlockId id) {
    if (sink_ != nullptr && d_.block(id).event_hash != 0) Tell(id);
  }
  // The blocks have left, the last one first. REQUIRES: of one group, and not used again yet.
  void OnLeave(BlockRange range) {
    if (sink_ != nullptr) TellLeft(range);
  }
  void OnSharedCopy(uint32_t copy) override;
  void OnSharedCopyGone(uint32_t copy) override;
  // Of where the block is nothing is left to be told, or it will be.
  bool IsTold(BlockId id) const {
    const Block& block = d_.block(id);
    if (sink_ == nullptr || block.event_hash == 0) return true;
    const uint8_t places = PlacesOf(block);
    const bool goes_later = served_changed_ || (block.kv_event_places & ~places) == 0;
    const bool is_later = late_block_ <= id && goes_later;
    return block.kv_event_places == places || is_later;
  }
  // What the domain serves may have begun or ended.
  void LookAtServing();
  // Tells of every block anew, in the turns that follow. REQUIRES: the sink was told that all
  // begins, and is told when no domain has_anew any more.
  void Republish();
  bool has_anew() const { return next_block_ != kBlockNone || next_copy_ != SharedCopies::kNone; }
  bool has_work() const {
    return has_anew() || late_block_ != kBlockNone || late_copy_ != SharedCopies::kNone;
  }
  // Goes on with what is to be told. False if there is nothing, or no room for it.
  bool Step();

 private:
  uint8_t& ToldOf(BlockId id) { return d_.blocks.Change<ToldPlaces>(id, {}).kv_event_places; }
  uint8_t MediaServed() const;  // now, a bit per KvEventMedium
  uint8_t PlacesOf(const Block& block) const;
  void Tell(BlockId id);
  void TellLeft(BlockRange range);
  void Send(BlockId id, uint8_t places, KvEvent::Kind kind);
  void SendCopy(const SharedCopies::Copy& copy, KvEvent::Kind kind);
  bool HasRoom(uint32_t block_count) const {
    return sink_->HasRoom(size_t{block_count} * kKvEventMediumCount);
  }
  void StepBlocks();
  void StepCopies();

  CacheDomain& d_;
  KvEventSink* const sink_;
  uint8_t served_;  // MediaServed, when it was looked at last
  // Those from there on are told anew: until then nothing is told of them.
  BlockId next_block_ = kBlockNone;
  uint32_t next_copy_ = SharedCopies::kNone;
  // Some from there on were not told for want of room, or since what is served changed.
  BlockId late_block_ = kBlockNone;
  bool served_changed_ = false;  // until the late ones were told
  uint32_t late_copy_ = SharedCopies::kNone;
  std::vector<KvEvent> leaving_;  // while they are told of
};

}  // namespace terrace
