// Group: one SpaceGroup as a domain keeps it: its members' geometry, worked out once, and the rows
// where its blocks' slots, extents and checksum roots are written down.
#pragma once

#include <cstdint>
#include <map>
#include <span>
#include <utility>
#include <vector>

#include "daemon/block/block.h"
#include "daemon/block/kv_event_sink.h"
#include "daemon/index/chunked_array.h"
#include "terrace/arena_layout.h"
#include "terrace/block_key.h"
#include "terrace/space.h"
#include "terrace/status.h"
#include "tiers/arena/slot_allocator.h"
#include "tiers/extent.h"

namespace terrace {

// Parts of a member that are read together, and where they lie in its slot: whole 4 KiB.
struct PartRun {
  uint32_t part_first = 0;
  uint32_t part_count = 0;
  uint64_t offset_bytes = 0;
  uint64_t length_bytes = 0;
};

// A member whose bytes live on this host.
struct LocalMember {
  uint32_t member = 0;  // index in the group
  SpaceId space;
  uint32_t class_index = 0;  // of the slot allocator
  uint64_t slot_bytes = 0;
  uint32_t window_blocks = 0;  // 0: full attention
  uint32_t window_index = 0;   // among the local windowed members
  uint32_t chunk_tokens = 0;   // > 0: what is needed begins with the next token's chunk
  uint32_t block_tokens = 0;
  uint32_t part_count = 0;
  uint32_t first_root = 0;      // its roots in a row of roots
  uint32_t first_part_bit = 0;  // its bits in a row of part bits, see commit_marks.h
  std::vector<uint64_t> part_offset_bytes;
  std::vector<uint64_t> part_bytes;
  std::vector<PartRun> part_runs;  // a block is read in these steps if it is read part by part

  // Of a windowed member: blocks before block `position` of a prompt that are needed to go on
  // there. With chunks of 8192 tokens and blocks of 16: none at 512, and 3 at 515.
  uint32_t WindowBefore(uint32_t position) const {
    if (chunk_tokens == 0) return window_blocks;
    const uint64_t next_token = uint64_t{position} * block_tokens;
    const uint64_t first_token = next_token / chunk_tokens * chunk_tokens;
    return position - static_cast<uint32_t>(first_token / block_tokens);
  }
};

// The slot classes a domain's allocator has, by owner and slot bytes: classes cannot be taken back,
// so a group that takes the place of another uses those that fit.
using SlotClasses = std::map<std::pair<uint64_t, uint64_t>, uint32_t>;

class Group {
 public:
  // Gives every local member a slot class. `owner` is unique among the groups of the domain.
  // kInvalid if a slot does not fit a segment; kNoSpace if the allocator knows too many classes.
  Status Open(const SpaceGroupSpec& spec, uint64_t owner, SlotAllocator* allocator,
              SlotClasses* classes);
  // In which steps blocks are read part by part: layers in order, and no read shorter than
  // `read_bytes_min` unless its slot is. REQUIRES: open.
  void PlanPartReads(uint64_t read_bytes_min);
  // Of a read part by part; 1: a block is read at once. Step k reads each member's part_runs[k], if
  // it has so many.
  uint32_t step_count() const { return step_count_; }

  const SpaceGroupSpec& spec() const { return spec_; }
  const GroupId& id() const { return id_; }
  // Local members in ascending order.
  std::span<const LocalMember> locals() const { return locals_; }
  // Clearing so many of a new block's roots costs a turn as much as one lookup.
  static constexpr uint32_t kRootsPerLookup = 128;
  // What it costs a turn to free a block's slots, or to write its rows anew, in blocks of a member.
  uint32_t change_cost_blocks() const { return ChangeCostBlocks(locals_.size()); }
  static uint32_t ChangeCostBlocks(size_t member_count) {
    return 1 + static_cast<uint32_t>(member_count / 8);
  }
  // Null for a remote member or none.
  const LocalMember* FindLocal(uint32_t member) const;
  uint64_t local_mask() const { return local_mask_; }
  uint64_t full_mask() const { return full_mask_; }  // local members without a window
  bool has_remote() const { return has_remote_; }
  uint32_t windowed_count() const { return windowed_count_; }
  uint32_t block_tokens() const { return spec_.block_tokens(); }
  uint64_t block_bytes() const { return block_bytes_; }
  // Of a block that has bytes of these members.
  uint64_t BytesOf(uint64_t member_mask) const;
  uint32_t part_words() const { return part_words_; }  // u64 words of a row of part bits
  uint32_t root_count() const { return root_count_; }

  RowPool<SlotRef>& slots() { return slots_; }
  RowPool<Extent>& extents() { return extents_; }
  RowPool<Checksum>& roots() { return roots_; }
  const RowPool<Checksum>& roots() const { return roots_; }  // one row a block
  const RowPool<SlotRef>& slots() const { return slots_; }

  // Blocks sealed up to then were there when the shared tier forgot the group: they stay here.
  uint64_t shared_since_us = 0;
  uint32_t kv_event_stream = KvEventSink::kStreamNone;
  bool has_file = false;    // a successor would know its spec
  bool was_opened = false;  // by a session, since the process began
  uint32_t session_count = 0;
  uint32_t recompute_ns_per_token = 0;  // as a client said last

 private:
  SpaceGroupSpec spec_;
  GroupId id_;
  std::vector<LocalMember> locals_;
  uint64_t local_mask_ = 0;
  uint64_t full_mask_ = 0;
  uint64_t block_bytes_ = 0;
  uint32_t windowed_count_ = 0;
  uint32_t part_words_ = 0;
  uint32_t root_count_ = 0;
  uint32_t step_count_ = 1;
  bool has_remote_ = false;
  RowPool<SlotRef> slots_{0};   // one a local member
  RowPool<Extent> extents_{0};  // one a local member
  RowPool<Checksum> roots_{0};  // one a part, members in order
};

}  // namespace terrace
