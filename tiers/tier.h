// Tier: a place below or beside DRAM where bytes can live. It allocates, frees, reads and writes
// extents, and knows nothing of the index, of policies, or of other tiers. DRAM is the hub: one end
// of every transfer is arena memory.
//
// THREADING: every method is called on the store thread and returns without blocking; transfers
// finish later through TierListener, on the store thread, never from inside the call that began
// them.
// OWNERSHIP: the buffer of a transfer belongs to the tier until its OnTransferDone. Work is
// abandoned, never cancelled: a caller that lost interest keeps the buffer and the extent alive
// until then.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "terrace/block_key.h"
#include "terrace/protocol.h"
#include "terrace/status.h"
#include "tiers/extent.h"

namespace terrace {

using TransferId = uint64_t;
using protocol::TierKind;

// What a persistent tier writes beside the payload, so that the bytes name themselves.
struct BlockRecord {
  uint32_t domain_index = 0;
  GroupId group;
  SpaceId space;
  BlockKey key;
  BlockKey parent;
  CommitId commit_id = 0;
  uint64_t event_hash = 0;
  uint64_t expires_at_s = 0;  // Unix seconds; 0: never
  uint32_t position = 0;      // in blocks from the root of its chain
  uint32_t recompute_ns_per_token = 0;
  uint16_t member = 0;
  uint8_t priority = 0;
  bool is_pinned = false;
  std::span<const Checksum> part_checksums;  // valid during the call only
};

struct TierStats {
  uint64_t capacity_bytes = 0;
  uint64_t used_bytes = 0;
  uint64_t transfers_in_flight = 0;
  uint64_t read_bytes = 0;
  uint64_t written_bytes = 0;
  uint64_t failed_transfers = 0;
  bool is_healthy = true;
};

class TierListener {
 public:
  virtual ~TierListener() = default;
  // kOk only when every byte arrived; a short read or write is kIo. Bytes are not verified here.
  virtual void OnTransferDone(TransferId transfer_id, Status status) = 0;
};

class Tier {
 public:
  virtual ~Tier() = default;

  virtual TierKind kind() const = 0;

  // A place for `length_bytes`. kNoSpace: evict and ask again. kUnsupported: the tier is switched
  // off.
  virtual Result<Extent> Allocate(uint32_t domain_index, uint64_t length_bytes) = 0;
  // REQUIRES: no transfer on `extent` is in flight.
  virtual void Free(const Extent& extent) = 0;

  // Fills `into` (into.size() == extent.length_bytes) from the extent. kBusy: the queue is full and
  // nothing was started. After kOk exactly one OnTransferDone(transfer_id) follows.
  virtual Status Read(TransferId transfer_id, const Extent& extent, std::span<std::byte> into) = 0;
  // Stores `from` and what `record` says. Same answers as Read.
  virtual Status Write(TransferId transfer_id, const Extent& extent, const BlockRecord& record,
                       std::span<const std::byte> from) = 0;

  // Predicted microseconds until a read of `length_bytes` begun now is done: queue and bandwidth.
  virtual uint64_t PredictReadUs(uint64_t length_bytes) const = 0;

  // True if bytes outlive the process; only then can a block be reported persisted.
  virtual bool is_persistent() const = 0;

  virtual TierStats stats() const = 0;
};

}  // namespace terrace
