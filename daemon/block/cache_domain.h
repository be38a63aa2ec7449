// CacheDomain: the data of one domain that its rooms (Residency, Evictor, Mover, …) share.
// Everybody reads all of it; each member is changed by the class named beside it, or by its own
// methods alone.
#pragma once

#include <array>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "daemon/block/block_table.h"
#include "daemon/block/deadline_heap.h"
#include "daemon/block/domain_groups.h"
#include "daemon/block/domain_options.h"
#include "daemon/block/domain_stats.h"
#include "daemon/block/erased_below.h"
#include "daemon/block/forgotten_keys.h"
#include "daemon/block/group.h"
#include "daemon/block/keys_query.h"
#include "daemon/block/lease_table.h"
#include "daemon/block/owned_by.h"
#include "daemon/block/seams.h"
#include "daemon/block/shared_copies.h"
#include "daemon/block/store_listener.h"
#include "daemon/index/radix_index.h"
#include "daemon/index/tree_walk.h"
#include "daemon/policy/admission.h"
#include "daemon/policy/eviction/policy.h"
#include "daemon/policy/hit_meter.h"
#include "daemon/policy/recent_total.h"
#include "terrace/protocol_admin.h"
#include "tiers/arena/slot_allocator.h"

namespace terrace {

class BlockHints;
class BlockHolds;
class Candidates;
class DramCopies;
class EraseCauseScope;
class LeaseManager;
class Lifecycle;
class LowerCopies;
class OperatorVerbs;
class SegmentBroker;
class SessionVerbs;
class SharedWriter;
class TransferJobs;

// Seams and counters that all domains of a store share.
struct StoreSeams {
  Clock& clock;
  Random& random;
  Offload& offload;
  StoreListener& listener;
  DeadlineHeap& deadlines;
  // Done so far beside what requests are charged for: blocks, nodes and entries looked at, and
  // completions told. A turn is as long as what it adds.
  uint64_t& work;
};

struct LowerTier {
  Tier* tier = nullptr;
  std::unique_ptr<EvictionPolicy> policy;
  OwnedBy<LowerCopies, uint64_t> block_count;            // with a Ready copy there
  OwnedBy<LowerCopies, uint64_t> persisted_block_count;  // that would outlive the process
  OwnedBy<TransferJobs, bool> is_off;                    // what is there cannot be read for now
  RecentTotal written{24 * 3600 * kUsPerSecond};         // Store: bytes of a day
};

// Who may read a block from DRAM at once, a byte a block: these, or a class of WriterClasses.
inline constexpr uint8_t kReadyForNone = 0;
inline constexpr uint8_t kReadyForAll = 1;

// The uids that have written here, as far as bytes can tell them apart. Blocks that nobody has
// verified yet are ready for their writers' class alone. LIMITS: the first kClassesMax uids; blocks
// of others are judged one by one.
class WriterClasses {
 public:
  static constexpr uint8_t kClassesMax = 16;

  void Add(uint32_t uid) {
    if (ClassOf(uid) == kReadyForNone && count_ < kClassesMax) uids_[count_++] = uid;
  }
  // kReadyForNone if the uid has none.
  uint8_t ClassOf(uint32_t uid) const {
    for (uint8_t i = 0; i < count_; ++i) {
      if (uids_[i] == uid) return static_cast<uint8_t>(kReadyForAll + 1 + i);
    }
    return kReadyForNone;
  }

 private:
  std::array<uint32_t, kClassesMax> uids_{};
  uint8_t count_ = 0;
};

// Slots of no block that a predecessor's clients may still touch: fenced until FreeLast.
class InheritedSlots {
 public:
  void Add(const SlotRef& slot, SlotAllocator& slots) {
    slots.row(slot).state = SlotState::kFenced;
    slots_.push_back(slot);
    byte_count_ += BytesOf(slot, slots);
  }
  // REQUIRES: there is one.
  void FreeLast(SlotAllocator& slots) {
    const SlotRef slot = slots_.back();
    slots_.pop_back();
    byte_count_ -= BytesOf(slot, slots);
    slots.Free(slot);
  }
  size_t count() const { return slots_.size(); }
  uint64_t byte_count() const { return byte_count_; }

 private:
  static uint64_t BytesOf(const SlotRef& slot, const SlotAllocator& slots) {
    return slots.row(slot).slot_pages * kArenaPageBytes;
  }

  std::vector<SlotRef> slots_;
  uint64_t byte_count_ = 0;
};

// Blocks whose state changed since the last incremental check of invariants; kept only once there
// has been one.
class ChangeLog {
 public:
  bool is_kept() const { return is_kept_; }
  void Note(BlockId id) {
    if (is_kept_) changed_.push_back(id);
  }
  // What was noted, and what follows is noted, too.
  std::vector<BlockId> Take() const {
    is_kept_ = true;
    return std::exchange(changed_, {});
  }

 private:
  mutable std::vector<BlockId> changed_;  // a check changes nothing else
  mutable bool is_kept_ = false;
};

struct CacheDomain {
  // Of requests that are longer, what grows with them gets its room at once: moving it again and
  // again would be felt.
  static constexpr uint32_t kGrownAtOnceMin = 8192;

  CacheDomain(uint32_t domain_index, DomainOptions domain_options,
              const StoreOptions& store_options, const StoreSeams& seams);

  const Block& block(BlockId id) const { return blocks[id]; }
  Group& group_of(const Block& block) const { return *groups[block.group_index]; }
  std::span<SlotRef> slots_of(const Block& block) const {
    return group_of(block).slots().at(block.dram.row);
  }
  std::span<Checksum> roots_of(const Block& block) const {
    return group_of(block).roots().at(block.roots_row);
  }
  // By a lease, a transfer or a checksum job.
  bool IsHeld(BlockId id) const { return blocks[id].job_count > 0 || index.pin_count(id) > 0; }
  uint64_t NowUs() const { return seams.clock.NowUs(); }
  ErasureMark MarkErasures() const;
  // The persistent tier has been told of all that had been erased when the mark was made.
  bool IsGivenToTier(ErasureMark* mark) const;
  // No successor finds what had been erased when the mark was made.
  bool IsErased(ErasureMark* mark) const;
  // Clients may be reading its extents in that tier.
  bool IsReadInPlace(BlockId id, uint32_t tier) const {
    return tier == device_tier && index.pin_count(id) > 0;
  }
  bool IsOnDevice(const Block& block) const {
    return device_tier != kLowerTiersMax && block.lower[device_tier].state == CopyState::kReady;
  }
  // The fastest tier that can be read and has a copy; kLowerTiersMax if there is none.
  uint32_t FastestTier(const Block& block) const;
  BlockTraits TraitsOf(BlockId id) const;
  // What outlives the daemon's memory says of the block, but for the member. An expiry is rounded
  // up to seconds.
  // Inline: a caller that takes it apart again pays for no copy.
  BlockDescription Describe(BlockId id) const {
    const Block& b = block(id);
    const RadixIndex::Node& node = index.node(id);
    BlockDescription described;
    static_cast<BlockMeta&>(described) = b;
    described.group = group_of(b).id();
    described.key = node.key;
    if (node.parent != kBlockNone) described.parent = index.key(node.parent);
    described.position = node.position;
    if (b.expires_us != kNever) described.expires_at_s = UnixSecondsOf(b.expires_us);
    return described;
  }
  // Rounded up: what is kept below never ends before what is here.
  uint64_t UnixSecondsOf(uint64_t expires_us) const;
  // The record that a tier writes beside one member's bytes.
  BlockRecord RecordOf(BlockId id, const LocalMember& local) const;
  TouchContext ContextOf(const protocol::Hints& hints) const;
  // DRAM is not all that there is: a tier below it, or the shared one.
  bool has_more_than_dram() const { return !lower.empty() || options.shared.tier != nullptr; }

  // The shared tier has the block, given or found there at that time.
  void NoteSharedCopy(BlockId id, uint64_t at_us, SharedOrigin origin);
  void AddDevice();
  // `limits` have changed, and these options are from now on as they say, as far as CopyTunable
  // says. An admission policy with another budget begins with what the last one has learned; one of
  // another name begins anew.
  void Retune(const DomainOptions& tuned, const std::string& admission_before);
  // A block was refuted: tells of its writer, if that is known (session 0: it is not).
  void NoteRefuted(const RefutedWriter& refuted);

  // Constant after construction, but for what can be tuned.
  DomainOptions own_options_;
  const uint32_t domain_index;
  const DomainOptions& options = own_options_;  // changed by Retune alone
  const StoreOptions& limits;                   // by StoreRooms::Retune
  const StoreSeams seams;

  SlotAllocator slots;     // DramCopies; segments: SegmentBroker
  RadixIndex index;        // Lifecycle; pins: BlockHolds
  TreeWalks walks{index};  // Store; Lifecycle tells it what goes
  BlockTable blocks;       // each part: its owner
  // By id, Candidates::ReadinessOf(); so that a long run is judged at a glance.
  OwnedBy<Candidates, MappedArray<uint8_t>> readiness;
  WriterClasses writer_classes;  // Lifecycle
  DomainGroups groups;           // store/group_places.h
  SlotClasses slot_classes;      // Group::Open() of each
  LeaseTable leases;             // LeaseManager
  LeaseBacklog lease_backlog;    // LeaseManager does it
  std::unique_ptr<EvictionPolicy> dram_policy;
  std::vector<LowerTier> lower;               // LowerCopies
  uint32_t persistent_tier = kLowerTiersMax;  // which of them; kLowerTiersMax: none
  uint32_t device_tier = kLowerTiersMax;      // likewise; the last of them, though the fastest
  bool is_scrubbing = false;  // a block of the persistent tier is held, while it is read
  ErasedBelow erased_below;   // LowerCopies
  std::unique_ptr<AdmissionPolicy> admission;
  HitMeter meter;           // Store
  ForgottenKeys forgotten;  // Lifecycle: keys of blocks that were Sealed
  // The cause of erasures; see EraseCauseScope.
  OwnedBy<EraseCauseScope, protocol::MissCause> erase_cause{protocol::MissCause::kCapacity};
  ChangeLog changes;
  InheritedSlots inherited;
  OwnedBy<BlockHolds, uint64_t> fenced_bytes;
  OwnedBy<BlockHolds, uint32_t> fenced_slot_count;
  // Rises when the shared tier has been away and may have lost what it had.
  OwnedBy<SharedWriter, uint32_t> shared_epoch{1};
  SharedCopies shared_copies;  // SharedWriter, SharedReader
  OwnedBy<Lifecycle, uint64_t> reserved_count;
  OwnedBy<BlockHints, uint64_t> pinned_blocks;  // by clients' own pins, which have no name
  OwnedBy<BlockHints, uint64_t> pinned_bytes;
  // How often a slot was asked for and none was free; and how often that had been when the
  // SegmentBroker looked last.
  OwnedBy<DramCopies, uint64_t> shortages;
  OwnedBy<SegmentBroker, uint64_t> shortages_seen;
  bool is_short() const { return shortages != shortages_seen; }
  OwnedBy<SegmentBroker, bool> is_room_coming;  // a segment is being populated, or will be
  OwnedBy<LeaseManager, uint64_t>
      lease_charge;  // blocks in leases, and what leases weigh themselves
  OwnedBy<SessionVerbs, uint32_t> session_count;
  OwnedBy<OperatorVerbs, protocol::ServingMode> serving{protocol::ServingMode::kServing};
  DomainCounters counters;
  std::vector<RefutedWriter> refuted_writers;  // NoteRefuted; kRefutedWritersMax at most
  uint64_t refuted_us = 0;                     // when a block was refuted last; 0: never
};

// While it lives, what is erased is erased for this cause.
class EraseCauseScope {
 public:
  EraseCauseScope(CacheDomain& domain, protocol::MissCause cause)
      : d_(domain), before_(std::exchange(domain.erase_cause.of_owner(), cause)) {}
  ~EraseCauseScope() { d_.erase_cause.of_owner() = before_; }
  EraseCauseScope(const EraseCauseScope&) = delete;
  EraseCauseScope& operator=(const EraseCauseScope&) = delete;

 private:
  CacheDomain& d_;
  const protocol::MissCause before_;
};

}  // namespace terrace
