// Block: what the daemon knows about one key of one SpaceGroup: where its copies are, who holds it,
// what it is worth. Blocks are named by BlockId, an index into contiguous arrays that all rooms of
// the daemon share; keys, edges, leases' pins and the time of the last use are the RadixIndex's.
//
// A block is Reserved (a WriteLease fills it), Sealed (bytes immutable, visible), or Erased (nobody
// can find it any more, but somebody still holds its slots).
//
// OWNERSHIP: a block is made of parts. Everybody reads all of them; each changes in its owner's
// methods, because only the classes that a part's Key names can ask the BlockTable for it.
#pragma once

#include <cstdint>

#include "daemon/index/block_id.h"
#include "terrace/block_key.h"
#include "terrace/protocol.h"
#include "tiers/block_meta.h"

namespace terrace {

inline constexpr uint32_t kLowerTiersMax = 3;  // tiers below DRAM
inline constexpr uint32_t kRowNone = 0xFFFFFFFF;
inline constexpr uint32_t kHandleNone = 0xFFFFFFFF;
inline constexpr uint64_t kNever = UINT64_MAX;  // a time that does not come

enum class BlockPhase : uint8_t { kUnused, kReserved, kSealed, kErased };

// One copy. kFilling: bytes are on their way in. kDraining: readable, but to be dropped as soon as
// the write to a lower tier that reads it is done. kUnverified: a predecessor's bytes in DRAM, not
// compared with their checksum yet, so not readable.
enum class CopyState : uint8_t { kNone, kFilling, kReady, kDraining, kUnverified };

// Where the bytes of a copy in DRAM come from.
enum class FillSource : uint8_t {
  kWriter,   // a client of this host
  kTier,     // Block::fill_tier, by a promotion
  kAdopted,  // they are a predecessor's, and being compared
  kShared,   // the tier that hosts share
};

struct BlockCopy {
  uint64_t member_mask = 0;  // members with bytes in this copy
  uint32_t row = kRowNone;   // where: a row of the group's slots or extents
  CopyState state = CopyState::kNone;
  uint8_t unpersisted_count = 0;  // members with bytes that might not outlive the process yet

  bool is_readable() const { return state == CopyState::kReady || state == CopyState::kDraining; }
};

// Which block it is, who wrote it, and where it stands in its life.
struct BlockLife {
  uint64_t created_us = 0;  // reserved, then sealed
  uint64_t writer_session = 0;
  uint32_t group_index = 0;
  uint32_t roots_row = kRowNone;  // checksum roots of all parts of all local members
  uint32_t writer_uid = 0;
  uint32_t writer_lease = kHandleNone;  // of a Reserved block; writer_entry: its place in there
  uint32_t writer_entry = 0;
  BlockPhase phase = BlockPhase::kUnused;
  bool is_outlived = false;  // it was stored before this process began

  class Key {
    friend class Lifecycle;
    Key() {}
  };
};

// What its writer and its readers said of it; its records say the same.
struct BlockTerms : BlockMeta {
  class Key {
    friend class BlockHints;
    friend class Lifecycle;
    Key() {}
  };
};

struct BlockExpiry {
  uint64_t expires_us = kNever;
  uint32_t expiry = kHandleNone;  // its timer; none before it is Sealed or restored

  class Key {
    friend class BlockHints;
    Key() {}
  };
};

// How often it was served.
struct BlockUse {
  uint32_t hit_count = 0;

  class Key {
    friend class BlockHints;
    Key() {}
  };
};

// The copy in DRAM.
struct DramPart {
  BlockCopy dram;
  uint32_t dram_children = 0;                    // children with slots in DRAM
  FillSource fill_source = FillSource::kWriter;  // of the last copy in DRAM, or the one expected
  uint8_t fill_tier = 0;                         // of kTier
  uint8_t steps_in = 0;        // of a promotion by parts: so many first steps are in and verified
  bool is_part_told = false;   // somebody may read parts of the promotion under way
  bool is_read_again = false;  // of the promotion under way: the first read brought other bytes
  bool is_read_ahead = false;  // promoted unasked, and not asked for since
  bool is_inherited = false;   // a predecessor's clients may still touch its slots
  bool has_roots = false;      // every part's checksum is known
  bool is_verified = false;    // the daemon itself has seen the bytes match

  class Key {
    friend class DramCopies;
    Key() {}
  };
};

// Its copies in the tiers below.
struct LowerPart {
  BlockCopy lower[kLowerTiersMax];
  uint32_t lower_children[kLowerTiersMax] = {};  // children with a copy there
  bool is_bad_below = false;  // erased: a copy that is still read in place was found wrong

  class Key {
    friend class LowerCopies;
    Key() {}
  };
};

// Its records in the persistent tier say something else by now.
struct RecordMark {
  bool is_update_due = false;

  class Key {
    friend class RecordUpdates;
    Key() {}
  };
};

// In which tiers' policies it is a candidate: bit 0 DRAM, bit 1 + t lower tier t.
struct CandidateMarks {
  uint8_t candidate_bits = 0;

  class Key {
    friend class Candidates;
    Key() {}
  };
};

// Pins with a name keep it, until they end.
struct NameMark {
  bool is_name_pinned = false;

  class Key {
    friend class BlockHolds;
    Key() {}
  };
};

// Who holds it beside leases, whose pins the index counts.
struct HoldCounts {
  uint32_t job_count = 0;    // transfers and checksum jobs that touch its slots
  uint32_t fence_count = 0;  // of its leases: revoked ones, not yet acknowledged

  class Key {
    friend class BlockHolds;
    Key() {}
  };
};

// KvEventMedium bits that routers were told of.
struct ToldPlaces {
  uint8_t kv_event_places = 0;

  class Key {
    friend class KvEventSource;
    Key() {}
  };
};

// Requests that wait for it: the head of a list, see daemon/lease/waiters.h.
struct WaiterList {
  uint32_t waiters = kHandleNone;

  class Key {
    friend class Waiters;
    Key() {}
  };
};

struct CheckMarks {
  bool is_in_check = false;   // a checksum job is under way
  bool is_check_due = false;  // it is in the Verifier's queue of those that nobody waits for

  class Key {
    friend class Verifier;
    Key() {}
  };
};

// Bit t: to be written to lower tier t once it is verified.
struct WriteWishes {
  uint8_t wanted_below = 0;

  class Key {
    friend class WriteBack;
    Key() {}
  };
};

// Its state towards the tier that hosts share.
struct SharedMarks {
  uint32_t shared_epoch = 0;  // of CacheDomain: the shared tier has it
  bool is_offered = false;    // waits to be stored there

  class Key {
    friend class SharedReader;
    friend class SharedWriter;
    Key() {}
  };
};

// In an order that leaves few holes.
struct Block : LowerPart,
               WriteWishes,
               RecordMark,
               ToldPlaces,
               DramPart,
               CheckMarks,
               BlockTerms,
               CandidateMarks,
               BlockLife,
               BlockExpiry,
               HoldCounts,
               BlockUse,
               WaiterList,
               SharedMarks,
               NameMark {
  // Its DRAM copy is a predecessor's, and being compared.
  bool is_adopting() const {
    return dram.state == CopyState::kFilling && fill_source == FillSource::kAdopted;
  }
  // Its DRAM copy is a predecessor's, and not all compared yet. Whoever asks for it is served, as
  // soon as it is.
  bool is_adopted() const { return dram.state == CopyState::kUnverified || is_adopting(); }
  // Nothing of it is here yet: it was found in the shared tier, or its bytes are on their way.
  bool is_expected() const {
    return phase == BlockPhase::kSealed && dram.state == CopyState::kNone &&
           fill_source == FillSource::kShared;
  }
  bool is_arriving() const {
    return dram.state == CopyState::kFilling && fill_source == FillSource::kShared;
  }
  // Bytes that nobody has verified are for those who could have written them.
  bool IsReadableFor(uint32_t uid) const {
    return dram.is_readable() && (is_verified || writer_uid == uid);
  }
  // Somebody said that it is not to be evicted.
  bool is_kept() const { return is_pinned || is_name_pinned; }
  bool is_wanted_below(uint32_t tier) const { return (wanted_below >> tier) & 1; }
  bool is_dram_candidate() const { return candidate_bits & 1; }
  bool is_lower_candidate(uint32_t tier) const { return (candidate_bits >> (1 + tier)) & 1; }
};
static_assert(sizeof(Block) <= 200, "a daemon of four million blocks pays for each byte");

}  // namespace terrace
