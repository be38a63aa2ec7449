// Frame version 1: what travels between libterrace and terraced. Fixed little-endian structs over a
// Unix stream socket; data never does (it lies in shared memory). docs/PROTOCOL.md explains each
// frame; this header is its layout.
//
// A *message* is one or more frames of the same verb and request id; all but the last carry
// kFrameMore, and their bodies are concatenated. So a long key list or a long reply is paged, and
// no frame exceeds frame_bytes_max. Everything a client sends is copied out of the socket once and
// validated after that; nothing the client says is an address.
#pragma once

#include <bit>
#include <cstdint>
#include <type_traits>

#include "terrace/arena_layout.h"
#include "terrace/block_key.h"
#include "terrace/checksum.h"
#include "terrace/status.h"
#include "terrace/units.h"

namespace terrace::protocol {

static_assert(std::endian::native == std::endian::little,
              "frames are little-endian structs; a big-endian port needs byte swaps at this seam");

inline constexpr uint8_t kVersion = 1;          // newest frame version this build speaks
inline constexpr uint8_t kVersionMin = 1;       // oldest client that is served
inline constexpr uint32_t kMagic = 0x31435254;  // "TRC1", first word of Hello

inline constexpr uint32_t kFrameBytesMax = 1 << 20;
inline constexpr uint32_t kMessageBytesMax = 16 << 20;
inline constexpr uint32_t kKeysPerRequestMax = 1 << 18;  // a 1 M-token prompt in 4-token blocks
// An Evict or Reset is answered when no crash can bring back what it erased, or after this long.
inline constexpr uint64_t kErasureWaitUs = 3'000'000;
inline constexpr uint32_t kBlocksPerTurnMax = 1024;  // the store thread never does more at once
inline constexpr uint32_t kErrorTextBytesMax = 1024;

enum class Verb : uint8_t {
  kHello = 1,
  kOpen = 2,
  kMatch = 3,     // how far is this prefix resident; pins nothing
  kAcquire = 4,   // match, pin, and start promoting what is below DRAM
  kPrefetch = 5,  // Acquire without a pin
  kJoin = 6,      // take part in a lease by its token
  kRelease = 7,
  kCancel = 8,  // give up a pending Acquire, Prefetch or Wait of this session
  kTouch = 9,   // refresh recency, or renew a lease
  kReserve = 10,
  kCommit = 11,
  kAbort = 12,
  kQuery = 13,
  kWait = 14,  // Query that answers when every key is persisted, or at its deadline
  kEvict = 15,
  kPin = 16,
  kReset = 17,  // forget a whole SpaceGroup
  kStats = 18,
  kList = 19,      // cursor over blocks, for ls and tree
  kUnmapped = 20,  // the client has unmapped and unregistered a Revoking segment

  // Daemon to client, unasked.
  kCompletion = 64,     // progress of a pending Acquire, Prefetch; request_id is that request's
  kLeaseRevoked = 65,   // stop using this lease's slots, then Release it
  kSegmentRevoke = 66,  // unmap this segment, then send kUnmapped
};

// Frame flags.
inline constexpr uint16_t kFrameMore = 1;  // another frame of this message follows

struct FrameHeader {
  uint32_t frame_bytes = 0;  // header included; 16 ≤ frame_bytes ≤ kFrameBytesMax
  uint8_t version = kVersion;
  Verb verb = Verb::kHello;
  uint16_t flags = 0;
  uint64_t request_id = 0;  // chosen by the client, unique among its pending requests; not 0
};

// First bytes of every message from the daemon. On an error the body that follows is a UTF-8
// sentence of ≤ kErrorTextBytesMax bytes that names the thing, the value, the limit and the remedy.
struct ReplyPrefix {
  uint64_t boot_id = 0;  // random, not 0; another value means another daemon: every lease is gone
  uint8_t status = 0;    // StatusCode
  uint8_t reserved[3] = {};
  int32_t detail = 0;  // errno of kIo
};

// Why a request ended, as the engine knows it.
enum class EndReason : uint8_t {
  kUnknown = 0,
  kToolCall = 1,
  kEndOfTurn = 2,
  kLength = 3,
  kAborted = 4,
};

inline constexpr uint8_t kPriorityUnset = 255;
inline constexpr uint8_t kPriorityMax = 100;
inline constexpr uint8_t kPriorityDefault = 35;

// Hint flags.
inline constexpr uint8_t kHintPin = 1;      // keep until unpinned or TTL
inline constexpr uint8_t kHintNoStore = 2;  // never write these blocks below DRAM
inline constexpr uint8_t kHintExact = 4;    // refuse blocks under a lossy codec, and chunks

inline constexpr uint64_t kRoomWaitUnitUs = 16'000;

// Optional with any verb; zero (kPriorityUnset for priority) says nothing.
struct Hints {
  // From receipt; 0 takes the daemon's default for the verb. Of an Acquire or Prefetch: until when
  // what is not ready may come.
  uint32_t deadline_us = 0;
  uint32_t recompute_ns_per_token = 0;  // what a miss costs the engine
  uint64_t session_hash = 0;            // the conversation or agent session this request belongs to
  uint32_t ttl_s = 0;                   // forget after this many seconds
  uint32_t min_tokens = 0;              // answer 0 rather than a shorter match
  uint32_t expected_reuse_ms = 0;       // when the engine expects the blocks to be asked for again
  EndReason end_reason = EndReason::kUnknown;
  uint8_t priority = kPriorityUnset;  // 0 first to go … 100 last
  uint8_t flags = 0;
  // Commit: parts that a lossy codec refused since the last one, at most 255. Acquire and Prefetch:
  // ms within which the answer itself is due, at most 255; 0: within deadline_us. Reserve: how long
  // it may wait for memory that is being populated, in kRoomWaitUnitUs.
  uint8_t by_verb = 0;
};

// ---- Hello ----------------------------------------------------------------------------------
// Send the domain's notice page (notice_page.h), too.
inline constexpr uint16_t kHelloNotices = 1;
// The client can do with memory that it may only read. Its descriptors are open for reading alone
// where the daemon hands out such; who does not say this is refused there.
inline constexpr uint16_t kHelloReader = 2;

struct HelloRequest {
  uint32_t magic = kMagic;
  uint8_t version_min = kVersionMin;
  uint8_t version_max = kVersion;
  uint16_t flags = 0;  // kHelloNotices, kHelloReader; older daemons do not look
  uint32_t pid = 0;    // as the client sees itself; for logs only
  uint32_t reserved2 = 0;
  char client_name[32] = {};  // NUL-padded UTF-8, for `terrace status`
};

// Carries fds in this order: one arena memfd per node (node_count of them), then the life socket,
// and behind it, if it was asked for and there is one, the notice page.
struct HelloReply {
  uint64_t session_id = 0;
  uint8_t version = 0;   // the frame version both will speak
  uint8_t key_hash = 0;  // KeyHash
  uint16_t node_count = 0;
  uint32_t frame_bytes_max = kFrameBytesMax;
  uint64_t segment_bytes = 0;
  uint32_t segments_max = 0;  // segments 0 … segments_max − 1 exist at most, over all nodes
  uint32_t segments_per_node = 0;  // segment s lies in memfd s / segments_per_node
  uint32_t lease_ttl_ms = 0;
  uint32_t keys_per_request_max = kKeysPerRequestMax;
  char domain_name[64] = {};
  std::byte secret[kDomainSecretBytes] = {};
};

// ---- Open -----------------------------------------------------------------------------------
// Body: OpenRequest, name, then per member OpenMember and its canonical text.
struct OpenRequest {
  uint32_t name_bytes = 0;
  uint32_t member_count = 0;
  // members this session reads and writes by default; may be 0 (a scheduler)
  uint64_t self_mask = 0;
};
struct OpenMember {
  uint32_t text_bytes = 0;
  uint8_t is_remote = 0;
  uint8_t reserved[3] = {};
};
// Body: OpenReply, then per member OpenedMember.
struct OpenReply {
  GroupId group;
  uint32_t group_handle = 0;  // names the group in this session's later requests; never 0
  uint32_t member_count = 0;
};
struct OpenedMember {
  SpaceId space;
  uint64_t slot_bytes = 0;
};

// ---- Match, Acquire, Prefetch ---------------------------------------------------------------
// Request flags of the key verbs.
inline constexpr uint32_t kKeysFlat = 1;          // keys are independent, not a chain
inline constexpr uint32_t kAcquireFollow = 2;     // also hand out Reserved blocks, part by part
inline constexpr uint32_t kReserveHasEvents = 4;  // a u64 event hash per key follows the keys
inline constexpr uint32_t kEvictDryRun = 8;
// With every descendant, also over blocks that have gone: of a key that is not here, and so has
// descendants that nobody can name, every block of the group (or groups) that has lost its parent.
inline constexpr uint32_t kEvictSubtree = 16;
inline constexpr uint32_t kPinClear = 32;
// Also tell of the parts of blocks that come from a lower tier, in the order of layers. Of Acquire,
// and of Join on a ReadLease.
inline constexpr uint32_t kAcquireByParts = 64;

// Body: KeysRequest, then key_count BlockKeys.
struct KeysRequest {
  uint32_t group_handle = 0;
  uint32_t key_count = 0;
  uint32_t flags = 0;
  uint32_t first_position = 0;  // block position of keys[0] in its prompt; 0 for a whole prompt
  uint64_t member_mask = 0;     // whose slots to answer; 0 takes the session's self_mask
  BlockKey parent;              // key before keys[0]; zero when first_position is 0 or unknown
  Hints hints;
};

enum class SpanState : uint8_t {
  kReady = 0,
  kComing = 1,     // being promoted; slots are pinned already
  kFollowing = 2,  // Reserved: parts arrive as the writer commits them
};
enum class TierKind : uint8_t { kHbm = 0, kDram = 1, kNvme = 2, kRedis = 3 };
inline constexpr uint8_t kTierKindCount = 4;

struct BlockSpan {
  uint32_t first_block = 0;  // index into the request's keys
  uint32_t block_count = 0;
  SpanState state = SpanState::kReady;
  TierKind tier = TierKind::kDram;  // where the bytes were found
  uint16_t reserved = 0;
  uint32_t eta_us = 0;  // predicted time until the last block of the span is Ready
};

// Match reply flags.
// a remote member is unknown: an upper bound, not a hit
inline constexpr uint32_t kMatchIsBound = 1;

// Body: MatchReply, then span_count BlockSpans. Match and Prefetch.
struct MatchReply {
  uint32_t block_count = 0;  // length of the usable prefix in blocks
  uint32_t token_count = 0;
  uint32_t span_count = 0;
  uint32_t flags = 0;
};

// Body: AcquireReply, span_count BlockSpans, then slot_count SlotAddresses: for every block in
// order, for every member of member_mask in ascending order. Also the reply to Join on a ReadLease.
// block_count 0 carries no lease (token is zero) and needs no Release.
struct AcquireReply {
  LeaseToken token;
  uint64_t member_mask = 0;
  uint32_t block_count = 0;
  uint32_t token_count = 0;
  uint32_t span_count = 0;
  uint32_t slot_count = 0;
  uint32_t lease_ttl_ms = 0;
  uint32_t flags = 0;
};

// Unasked, under the request_id of its Acquire or Prefetch. Ready blocks come in prefix order. An
// error status covers every block from first_block to the end: they have left the lease.
struct Completion {
  LeaseToken token;
  uint32_t first_block = 0;
  uint32_t block_count = 0;
  uint32_t part_first = 0;  // part range that became readable, of each of the blocks
  uint32_t part_count = 0;  // 0: the whole blocks
  uint32_t member = 0;      // whose parts
  uint32_t flags = 0;       // kCompletionLast
};
inline constexpr uint32_t kCompletionLast = 1;  // nothing further comes for this request
// Of a followed block: its writer declared this windowed member absent. The slot address that the
// Acquire answered for it means nothing any more.
inline constexpr uint32_t kCompletionAbsent = 2;

// ---- Join, Release, Cancel, Touch ------------------------------------------------------------
struct JoinRequest {
  LeaseToken token;
  uint64_t member_mask = 0;  // whose slots to answer; 0 takes the session's self_mask
  uint32_t group_handle = 0;
  uint32_t flags = 0;  // kAcquireByParts
};
struct ReleaseRequest {
  LeaseToken token;
  Hints hints;
};
struct CancelRequest {
  uint64_t request_id = 0;
};
// Renews `token` if it is not zero; else body: TouchRequest, KeysRequest, keys.
struct TouchRequest {
  LeaseToken token;
};

// ---- Reserve, Commit, Abort ------------------------------------------------------------------
// Body: KeysRequest, keys, and with kReserveHasEvents key_count u64 event hashes.
// Reply body: ReserveReply, key_count ReservedKeys, then slot_count SlotRefs: for every key whose
// status is kOk in order, for every member of member_mask in ascending order.
// Also the reply to Join on a WriteLease.
struct ReserveReply {
  LeaseToken token;  // zero when no key was reserved
  uint64_t member_mask = 0;
  uint32_t key_count = 0;
  uint32_t slot_count = 0;
  uint32_t lease_ttl_ms = 0;
  uint32_t reserved = 0;
};
struct ReservedKey {
  uint8_t status = 0;        // kOk: write it; kExists; kBusy: somebody else is; kNoSpace
  uint8_t is_passed_by = 0;  // with kNoSpace, 1: all that is there is likelier to be asked for
  uint8_t reserved[2] = {};
  uint32_t writer_age_ms = 0;  // with kBusy
  CommitId commit_id = 0;      // with kOk
};

// Commit entry flags.
inline constexpr uint16_t kCommitHasChecksums = 1;  // part_count Checksums follow in the list
inline constexpr uint16_t kCommitAbsent = 2;        // this windowed member has no bytes here
// Commit request flags.
inline constexpr uint32_t kCommitRelease = 1;  // Release the lease in the same step

// Body: CommitRequest, entry_count CommitEntries, then the Checksums of the entries that have them.
struct CommitRequest {
  LeaseToken token;
  uint32_t entry_count = 0;
  uint32_t flags = 0;
  Hints hints;
};
struct CommitEntry {
  uint32_t key_index = 0;  // index into the Reserve's keys
  uint16_t member = 0;
  uint16_t flags = 0;
  uint16_t part_first = 0;
  uint16_t part_count = 0;
  uint32_t row = 0;  // echo of the SlotRef
  uint32_t segment = 0;
  uint32_t generation = 0;
};
// Body: CommitReply, then entry_count status bytes.
struct CommitReply {
  uint32_t entry_count = 0;
  uint32_t sealed_count = 0;  // blocks that became visible with this commit
};
// Body: AbortRequest, then key_count u32 key indexes; key_count 0 aborts the whole lease.
struct AbortRequest {
  LeaseToken token;
  uint32_t key_count = 0;
  uint32_t parts_refused = 0;  // by a lossy codec, of which no Commit told
};

// ---- Query, Wait, Evict, Pin, Reset ----------------------------------------------------------
enum class BlockState : uint8_t { kAbsent = 0, kReserved = 1, kSealed = 2 };

// Body: KeysRequest, keys. Reply body: key_count QueriedBlocks.
struct QueriedBlock {
  BlockState state = BlockState::kAbsent;
  uint8_t tier_mask = 0;  // bit per TierKind that every full member is served from
  uint8_t priority = 0;
  uint8_t flags = 0;  // kQueriedPersisted, kQueriedPinned
  uint32_t lease_count = 0;
  CommitId commit_id = 0;
};
inline constexpr uint8_t kQueriedPersisted = 1;  // data and catalog record are on disk
inline constexpr uint8_t kQueriedPinned = 2;

// Evict and Pin: body KeysRequest, keys. group_handle 0 means every group of the domain; key_count
// 0 with kEvictSubtree means every block of the group or domain.
struct EvictReply {
  uint64_t block_count = 0;  // with kEvictDryRun: that would be evicted
  uint64_t byte_count = 0;
  uint64_t skipped_count = 0;  // leased, pinned, or with a child that is
};
struct PinReply {
  uint32_t block_count = 0;
  uint32_t reserved = 0;
};
struct ResetRequest {
  uint32_t group_handle = 0;
  uint32_t reserved = 0;
};

// ---- Stats, List, Unmapped -------------------------------------------------------------------
// Reply body: a UTF-8 JSON document; docs/OPERATIONS.md names its fields.
struct StatsRequest {
  uint32_t flags = 0;
  uint32_t reserved = 0;
};
// Walks the blocks of a group in chain order, ≤ entry_count_max at a time.
// Body: ListRequest. Reply body: ListReply, then entry_count ListEntries.
struct ListRequest {
  uint32_t group_handle = 0;  // 0: every group of the domain
  uint32_t entry_count_max = 0;
  uint64_t cursor = 0;  // 0 starts; else ListReply::cursor
  BlockKey root;        // zero: everything; else only this block's subtree
};
struct ListReply {
  uint64_t cursor = 0;  // 0: the end
  uint32_t entry_count = 0;
  uint32_t reserved = 0;
};
struct ListEntry {
  BlockKey key;
  BlockKey parent;
  GroupId group;
  uint64_t byte_count = 0;
  uint64_t age_ms = 0;    // since it was sealed
  uint64_t idle_ms = 0;   // since it was last touched
  uint32_t position = 0;  // in blocks from the root of its chain, as far as known
  uint32_t lease_count = 0;
  uint32_t hit_count = 0;
  uint32_t child_count = 0;
  uint32_t expires_in_s = 0;  // 0: never
  BlockState state = BlockState::kSealed;
  uint8_t tier_mask = 0;
  uint8_t priority = 0;
  uint8_t flags = 0;
};
struct UnmappedRequest {
  uint32_t segment = 0;
  uint32_t reserved = 0;
};
struct LeaseRevoked {
  LeaseToken token;
};
struct SegmentRevoke {
  uint32_t segment = 0;
  uint32_t reserved = 0;
};

// Sizes are part of the protocol.
static_assert(sizeof(FrameHeader) == 16);
static_assert(sizeof(ReplyPrefix) == 16);
static_assert(sizeof(Hints) == 32);
static_assert(sizeof(HelloRequest) == 48);
static_assert(sizeof(HelloReply) == 296);
static_assert(sizeof(OpenRequest) == 16 && sizeof(OpenMember) == 8);
static_assert(sizeof(OpenReply) == 24 && sizeof(OpenedMember) == 24);
static_assert(sizeof(KeysRequest) == 72);
static_assert(sizeof(BlockSpan) == 16 && sizeof(MatchReply) == 16);
static_assert(sizeof(AcquireReply) == 48 && sizeof(Completion) == 40);
static_assert(sizeof(JoinRequest) == 32 && sizeof(ReleaseRequest) == 48);
static_assert(sizeof(CancelRequest) == 8 && sizeof(TouchRequest) == 16);
static_assert(sizeof(ReserveReply) == 40 && sizeof(ReservedKey) == 16);
static_assert(sizeof(CommitRequest) == 56 && sizeof(CommitEntry) == 24);
static_assert(sizeof(CommitReply) == 8 && sizeof(AbortRequest) == 24);
static_assert(sizeof(QueriedBlock) == 16 && sizeof(EvictReply) == 24 && sizeof(PinReply) == 8);
static_assert(sizeof(StatsRequest) == 8 && sizeof(ListRequest) == 32 && sizeof(ListReply) == 16);
static_assert(sizeof(ListEntry) == 96);
static_assert(sizeof(UnmappedRequest) == 8 && sizeof(SegmentRevoke) == 8);

}  // namespace terrace::protocol
