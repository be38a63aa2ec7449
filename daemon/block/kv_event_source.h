// KvEventSource: tells routers which blocks of a domain this host can serve, and from where, in the
// engine's own hashes. A block is told of once it is Sealed and once it has gone; a copy whose
// bytes a restart has still to verify counts, for whoever asks for it is served.
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

class KvEventSource {
 public:
  // Silent without a sink in the domain's options.
  explicit KvEventSource(CacheDomain& domain) : d_(domain), sink_(domain.options.kv_events) {}

  // The block is not what it was.
  void OnChange(BlockId id) {
    if (sink_ != nullptr && d_.block(id).event_hash != 0) Tell(id);
  }
  // The blocks have left, the last one first. REQUIRES: of one group, and not used again yet.
  void OnLeave(BlockRange range) {
    if (sink_ != nullptr) TellLeft(range);
  }
  // Of where the block is nothing is left to be told.
  bool IsTold(BlockId id) const {
    const Block& block = d_.block(id);
    return sink_ == nullptr || block.event_hash == 0 || block.kv_event_places == PlacesOf(block);
  }
  // Tells again of every block, in the turns that follow.
  void Republish();
  bool has_work() const { return next_ != kBlockNone; }
  // Goes on with that, as far as the sink has room.
  void Step();

 private:
  uint8_t& ToldOf(BlockId id) { return d_.blocks.Change<ToldPlaces>(id, {}).kv_event_places; }
  uint8_t PlacesOf(const Block& block) const;
  void Tell(BlockId id);
  void TellLeft(BlockRange range);
  void Send(BlockId id, uint8_t places, KvEvent::Kind kind);

  CacheDomain& d_;
  KvEventSink* const sink_;
  BlockId next_ = kBlockNone;     // of those to be told of again
  std::vector<KvEvent> leaving_;  // while they are told of
};

}  // namespace terrace
