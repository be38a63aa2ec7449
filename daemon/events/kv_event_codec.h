// The payload of KV event messages, as vLLM writes it and routers read it: a msgpack array of a
// time, events, and the data-parallel rank. docs/OPERATIONS.md#kv-events shows the fields.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>

#include "daemon/block/kv_event_sink.h"
#include "daemon/config/config.h"

namespace terrace {

// No event is longer as a map of its own, and a block that follows another adds that much.
inline constexpr size_t kKvEventBytesMax = 160;
inline constexpr size_t kKvFollowingBytesMax = 9;
// What is around the events of a message, AllBlocksCleared with it.
inline constexpr size_t kKvBatchBytesMax = 64;

struct KvEventForm {
  uint32_t block_tokens = 0;
  KvEventEncoding encoding = KvEventEncoding::kMap;
  double unix_s = 0;
  bool begins_anew = false;  // AllBlocksCleared comes first
};

// Blocks that follow each other become one event. Its token_ids are empty: tokens never reach the
// daemon, and routers know them from the engine's own event of the same hash.
// REQUIRES: `events` are of one stream, each stored or removed.
std::string EncodeKvEvents(std::span<const KvEvent> events, const KvEventForm& form);
// So many of them, from the first on, surely fit into a message of `bytes_max`; one at least.
size_t KvEventsWithin(std::span<const KvEvent> events, size_t bytes_max);
// The one event AllBlocksCleared.
std::string EncodeKvCleared(KvEventEncoding encoding, double unix_s);

}  // namespace terrace
