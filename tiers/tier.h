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
#include <string>
#include <vector>

#include "terrace/block_key.h"
#include "terrace/protocol.h"
#include "terrace/status.h"
#include "tiers/block_meta.h"
#include "tiers/extent.h"
#include "tiers/tier_shares.h"

namespace terrace {

using TransferId = uint64_t;
using protocol::TierKind;

inline constexpr uint32_t kOwnerNone = 0xFFFFFFFF;
inline constexpr uint64_t kRangeAlignmentBytes = 4096;

// What a persistent tier writes beside the payload, so that the bytes name themselves.
struct BlockRecord : BlockDescription {
  uint32_t domain_index = 0;
  uint64_t epoch = 0;  // restored only: later writes of the domain have higher ones
  uint32_t owner =
      kOwnerNone;  // the caller's name for the block, echoed by OnPersisted; not stored
  std::span<const Checksum> part_checksums;  // valid during the call only
  std::span<const uint64_t> part_bytes;      // likewise; of the payloads; not stored
  bool is_moved = false;  // of what the tier has elsewhere: see Tier::StateOfMoved; not stored
};

// Of an extent to which a block was written with is_moved.
enum class MovedState : uint8_t {
  kComing,
  kDurable,  // bytes and record outlive even a loss of power: the other extent may be freed
  kLost,     // they may not have reached the drive: to be freed
};

struct TierStats {
  uint64_t capacity_bytes = 0;
  uint64_t used_bytes = 0;
  uint64_t transfers_in_flight = 0;
  uint64_t read_bytes = 0;
  uint64_t written_bytes = 0;
  uint64_t failed_transfers = 0;
  uint64_t stuck_transfers = 0;    // accepted long ago and not heard of since
  uint64_t suspect_bytes = 0;      // not used for now: read wrong, being written and read back
  uint64_t quarantined_bytes = 0;  // not used again: the drive was found wrong there
  uint64_t places_recovered = 0;   // were suspect, and found sound
  uint64_t places_lost = 0;        // with what they held: the owners learn it when they read
  uint64_t corrupt_entries = 0;    // found at start
  uint64_t too_large_bytes = 0;    // of the largest block that was asked for and fits no slab
  bool is_at_files_limit = false;  // it may grow, and has as many slab files as may be open
  uint64_t files_open = 0;         // of that
  // The process's limit of descriptors is why, and so many are wanted. 0: each path has as many
  // files as one may.
  uint64_t fds_max = 0, fds_wanted = 0;
  uint64_t catalog_memory_bytes = 0;
  std::string catalog_trouble;    // why a start has to read all tables; empty: it need not
  uint64_t left_alone_bytes = 0;  // of slab files that are not this domain's, or not whole
  uint64_t ungrouped_bytes = 0;   // of those: of blocks whose groups nobody knows
  bool is_healthy = true;         // false: switched off, and trying to come back
  ShareStats share;               // of a tier that domains share; max_bytes 0: it is none
};

// What keeps one drive of a tier from its work, for a person.
struct DriveTrouble {
  std::string path;
  uint32_t drive = 0;      // its number in the tier
  std::string lost_mount;  // the path lay on this one, which is not mounted: nothing else holds
  std::string not_opened;  // why it could not be at the start; nothing else holds
  bool is_off = false;     // no request goes there; false: it has no room for more
  bool makes_no_files = false;  // it is off for that, be it tried again now and then
  const char* operation = "";   // what failed
  int32_t error = 0;            // errno of the last one; 0: no answer came
  uint32_t failures_in_row = 0;
  int32_t probe_error = 0;  // errno of the last try to use it again; 0: none has failed
  uint64_t off_count = 0;   // how often it has been switched off
};

// An erasure is the Free or Quarantine of something that a successor might find.
struct ErasureProgress {
  uint64_t begun = 0;
  uint64_t ended = 0;  // so many of the first: no successor finds them, whatever happens
};

class TierListener {
 public:
  virtual ~TierListener() = default;
  // kOk only when every byte arrived; a short read or write is kIo. Bytes are not verified here.
  virtual void OnTransferDone(TransferId transfer_id, Status status) = 0;
  // A persistent tier: what Write(owner, commit_id, member) stored outlives the process from now
  // on. At most once a write, after its OnTransferDone(kOk), unless the extent was freed before.
  virtual void OnPersisted(uint32_t domain_index, uint32_t owner, CommitId commit_id,
                           uint32_t member) = 0;
  // What the drive says of the owner's bytes is in doubt: the record of each of its extents wants
  // to be written anew (Amend). Until then no erasure there has ended.
  virtual void OnRecordInDoubt(uint32_t /*domain_index*/, uint32_t /*owner*/) {}
  // A tier of the domain that had no room just now, or was off, may have some.
  virtual void OnRoom(uint32_t domain_index) = 0;
};

class Tier {
 public:
  virtual ~Tier() = default;

  virtual TierKind kind() const = 0;

  // A place for `length_bytes` in `part_count` parts. kNoSpace: evict and ask again. kBusy: room is
  // being made, ask after OnRoom. kUnsupported: the tier is switched off.
  virtual Result<Extent> Allocate(uint32_t domain_index, uint64_t length_bytes,
                                  uint32_t part_count) = 0;
  // REQUIRES: no transfer on `extent` is in flight.
  virtual void Free(const Extent& extent) = 0;
  // As Free, for a place whose bytes did not verify: it is not handed out again, unless the tier
  // finds that the drive keeps there what it is given.
  virtual void Quarantine(const Extent& extent) { Free(extent); }

  // Fills `into` (into.size() == extent.length_bytes) from the extent. kBusy: the queue is full and
  // nothing was started. After kOk exactly one OnTransferDone(transfer_id) follows.
  virtual Status Read(TransferId transfer_id, const Extent& extent, std::span<std::byte> into) = 0;
  // Whether reading a part of an extent costs about that part of reading it all.
  virtual bool reads_ranges() const { return false; }
  // As Read, of the into.size() bytes that begin `offset_bytes` inside the extent; both are
  // multiples of kRangeAlignmentBytes. REQUIRES: reads_ranges().
  virtual Status ReadRange(TransferId /*transfer_id*/, const Extent& /*extent*/,
                           uint64_t /*offset_bytes*/, std::span<std::byte> /*into*/) {
    return Status(StatusCode::kUnsupported, "this tier reads whole extents");
  }
  // Stores `from` and what `record` says. Same answers as Read.
  virtual Status Write(TransferId transfer_id, const Extent& extent, const BlockRecord& record,
                       std::span<const std::byte> from) = 0;

  // What `record` says of the bytes in `extent` has changed (pin, priority, expiry); they have not.
  virtual void Amend(const Extent& /*extent*/, const BlockRecord& /*record*/) {}

  // Predicted microseconds until a read of `length_bytes` begun now is done: queue and bandwidth.
  virtual uint64_t PredictReadUs(uint64_t length_bytes) const = 0;
  // How long whatever holds one of `extents` has owed answers and given none: it will be silent for
  // as long again, whatever it did before. 0: it answers, or it is time to try it again.
  virtual uint64_t SilentUs(std::span<const Extent> /*extents*/) const { return 0; }

  // True if clients read its extents where they lie, under a lease: a held block's extents are then
  // neither freed nor used for something else.
  virtual bool is_addressable() const { return false; }

  // True if bytes outlive the process; only then can a block be reported persisted.
  virtual bool is_persistent() const = 0;
  // Of a persistent tier: how far what Free gave away has been erased.
  virtual ErasureProgress erasures() const { return {}; }
  // True while a successor might still find some of it.
  bool has_erasures_pending() const { return erasures().ended < erasures().begun; }

  // After kNoSpace: evicting single blocks may not help, because room is held by places of another
  // kind. Appends the owners (BlockRecord::owner) whose extents are worth freeing together, or
  // none.
  virtual void AppendOwnersToDrop(uint64_t /*length_bytes*/, uint32_t /*part_count*/,
                                  std::vector<uint32_t>* /*owners*/) {}
  // Room that goes back to other domains: appends some owners that still have places in it. True:
  // there may be others, to be asked for at once; false: from the beginning, after the next Tick.
  virtual bool AppendOwnersToGive(std::vector<uint32_t>* /*owners*/) { return false; }

  // Room that goes because the tier is to be smaller: as AppendOwnersToGive, of owners who keep
  // what they have there in another place: copied there, and then freed here.
  virtual bool AppendOwnersToMove(std::vector<uint32_t>* /*owners*/) { return false; }
  virtual bool IsToMove(const Extent& /*extent*/) const { return false; }
  // A write with BlockRecord::is_moved is recorded once its bytes outlive a loss of power, so that
  // a successor believes one of the two copies, and never one that is not there. Nobody hears
  // OnPersisted of it; this says how far it is.
  virtual MovedState StateOfMoved(const Extent& /*extent*/) const { return MovedState::kDurable; }
  // What is to be moved cannot be: it is given.
  virtual void GiveUpMoving() {}

  // Now and then, at least once a second.
  virtual void Tick() {}

  virtual TierStats stats() const = 0;
  // Of drives that are off, full or not mounted; grows with those alone.
  virtual std::vector<DriveTrouble> troubles() const { return {}; }
};

}  // namespace terrace
