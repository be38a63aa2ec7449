// KvEventSink: the seam between the store, which knows when a block comes and goes, and whoever
// tells routers so.
//
// THREADING: called on the store thread; no call blocks.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "terrace/space.h"

namespace terrace {

// kDevice: the daemon's own tier in a device's memory. kShared: the tier that hosts share.
enum class KvEventMedium : uint8_t { kDram, kPersistent, kDevice, kShared };
inline constexpr uint32_t kKvEventMediumCount = 4;

struct KvEvent {
  // Between kAllBegins and kAllEnds, which are of no stream, everything is told anew: what was told
  // before is void.
  enum class Kind : uint8_t { kStored, kRemoved, kAllBegins, kAllEnds };

  uint64_t hash = 0;         // the engine's; never 0
  uint64_t parent_hash = 0;  // of a stored block; 0: it begins a prompt, or its parent has none
  uint32_t stream = 0;
  Kind kind = Kind::kStored;
  KvEventMedium medium = KvEventMedium::kDram;
};

struct KvEventCounters {
  bool is_on = true;               // false: nobody is told anything
  bool has_ended = false;          // until a restart, that is
  uint64_t events = 0;             // given to subscribers
  uint64_t messages = 0;           // in which
  uint64_t lost = 0;               // for want of room, of no stream, or since they are off
  uint64_t untold_groups = 0;      // that are there, and no stream was left for them
  uint64_t errors = 0;             // after each the sockets were made anew
  uint64_t peers_ended = 0;        // connections, over TCP, above a limit
  uint64_t replays = 0;            // asked for, and answered
  uint64_t replays_refused = 0;    // above a limit, or of another form: not answered
  uint64_t replays_abandoned = 0;  // who asked did not read
  uint64_t republications = 0;     // every block was told of again
};

class KvEventSink {
 public:
  static constexpr uint32_t kStreamNone = 0xFFFFFFFF;

  virtual ~KvEventSink() = default;
  // Where events of a group's blocks belong, which is there now. kStreamNone: nobody is told of
  // them, and they are counted as lost.
  virtual uint32_t StreamOf(uint32_t domain_index, const SpaceGroupSpec& spec) = 0;
  // A group of the stream is no more. Of its blocks nothing is believed from then on.
  virtual void EndStream(uint32_t stream) = 0;
  // In order. Without room for all of them they are lost: the sink then asks for everything anew.
  virtual void Publish(std::span<const KvEvent> events) = 0;
  // For so many events at least, and some removals, which cannot wait, beside them.
  virtual bool HasRoom(size_t event_count) const = 0;
};

}  // namespace terrace
