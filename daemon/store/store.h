// Store: the one owner of metadata. Sessions ask it in plain function calls; it answers at once
// from what it knows, and tells StoreListener what happens later. It is sans-I/O: bytes move in the
// tiers and in clients, time and randomness come through seams.h, so a seed replays exactly.
//
// THREADING: the store thread only. No call does more than protocol::kBlocksPerTurnMax blocks;
// longer requests are continued call by call (see AcquireResult, ReserveResult).
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <unordered_map>
#include <vector>

#include "daemon/block/block.h"
#include "daemon/block/domain_options.h"
#include "daemon/block/domain_stats.h"
#include "daemon/block/keys_query.h"
#include "daemon/block/seams.h"
#include "daemon/block/store_listener.h"
#include "daemon/store/restore_summaries.h"
#include "daemon/transfer/copy_findings.h"
#include "terrace/block_key.h"
#include "terrace/protocol.h"
#include "terrace/protocol_device.h"
#include "terrace/protocol_insight.h"
#include "terrace/space.h"
#include "terrace/status.h"
#include "tiers/tier.h"

namespace terrace {

struct OpenedGroup {
  uint32_t group_index = 0;  // within the domain
  GroupId id;
  std::vector<protocol::OpenedMember> members;
};

// How many blocks are described in one turn: all members and copies of each are looked at.
inline constexpr uint32_t kListBlocksMax = protocol::kBlocksPerTurnMax / 4;

// How many keys may be compared with runs in one turn.
inline constexpr uint32_t kReadyKeysPerTurnMax = 8 * protocol::kBlocksPerTurnMax;

// How far a prefix has been walked; the store's own.
struct PrefixWalk {
  uint32_t walked_count = 0;          // keys with every full-attention member present
  uint32_t usable_count = 0;          // the largest prefix at which every window is complete, too
  std::vector<uint32_t> window_runs;  // per windowed member: blocks present without a gap, to here
  uint64_t read_run = 0;              // of the promotions begun for it; see Mover
  BlockId read_on = kBlockNone;       // the last block, if it was below: its chain is read ahead
};

// What an Acquire did not find; the store's own.
struct AcquireMisses {
  uint32_t asked_count = 0;  // keys that were passed
  uint32_t cold_count = 0;   // of those, never seen
  bool is_rest_cold = false;
  std::optional<protocol::MissCause> cause;  // of the first that was not there
};

// What one pass over a lease brings its joiner. A lease whose slots do not fit one answer is told
// in pages of slots; behind the last of them come the spans of all of it, and then completions.
enum class JoinWalk : uint8_t { kAll, kSlots, kSpans };

// A lease as its joiners count it.
struct LeaseShape {
  bool is_write = false;
  uint32_t block_count = 0;  // write: keys
};

// Continuation: pass the same object with the next keys (and first_position advanced by the keys
// already passed) until is_finished or no keys are left, then call the matching Finish…. Between
// calls anything may happen; what is pinned stays pinned. A call that fails needs no Finish….
struct AcquireResult {
  protocol::AcquireReply reply;  // counts and token so far
  std::vector<protocol::BlockSpan> spans;
  std::vector<SlotAddress> slots;
  PrefixWalk walk;
  AcquireMisses misses;
  bool is_finished = false;  // the prefix ended: later keys cannot match
  // Join only. To go on with a lease that the session has joined, reply.token and the first block,
  // as reply.block_count, are set before the first call.
  JoinWalk join_walk = JoinWalk::kAll;
  uint32_t block_count_max = UINT32_MAX;  // where the walk ends
};
struct PrefixMatch {
  protocol::MatchReply reply;
  std::vector<protocol::BlockSpan> spans;
  PrefixWalk walk;
  bool is_finished = false;
};
struct ReserveResult {
  protocol::ReserveReply reply;
  std::vector<protocol::ReservedKey> keys;
  std::vector<SlotRef> slots;
  BlockKey last_key;             // parent of the next call's first key
  bool is_out_of_space = false;  // a key of the chain found no room: later ones get none either
  // The next key has to wait for memory that is being populated: OnSeekDone follows, then the call
  // goes on with it. Until room_until_us at most; 0: the first call says when that is.
  bool awaits_room = false;
  uint64_t room_until_us = 0;
  bool is_finished = false;  // Join only: every key has been answered
  // Join only, as in AcquireResult: the first key to answer, and where to end.
  uint32_t first_key = 0;
  uint32_t key_count_max = UINT32_MAX;
};
struct ExplainResult {
  protocol::ExplainReply reply;
  std::vector<protocol::ExplainNear> nears;
  PrefixWalk walk;
  bool is_finished = false;
};
struct CommitResult {
  protocol::CommitReply reply;
  std::vector<StatusCode> entries;
};

class Store {
 public:
  Store(StoreOptions options, Clock& clock, Random& random, Offload& offload,
        StoreListener& listener);
  ~Store();

  // ---- what outlived the last daemon: before the first session, in this order ----
  // A group whose blocks follow.
  Status RestoreGroup(uint32_t domain_index, const SpaceGroupSpec& spec);
  // One member's bytes of a block, in an extent of lower tier `tier_index`. The owner to remember
  // (BlockRecord::owner), or kOwnerNone: not wanted, the tier frees the extent.
  uint32_t RestoreCopy(uint32_t domain_index, uint32_t tier_index, const BlockRecord& record,
                       const Extent& extent);
  // A RestoreCopy of this key is near.
  void PrefetchCopy(uint32_t domain_index, const BlockKey& key) const;
  // Joins members to blocks and blocks to chains; frees what is not whole. The tier has finished
  // its own restoring by then.
  RestoreSummary FinishRestore(uint32_t domain_index);

  // Takes over DomainOptions::slot_table and populated_segments as a predecessor left them, after
  // FinishRestore. `sessions` are its clients that may still touch the arena.
  AdoptSummary AdoptSlots(uint32_t domain_index, std::span<const SessionId> sessions);
  // One of them is dead, or done with the arena.
  void PredecessorSessionEnded(uint32_t domain_index, SessionId session);

  // ---- sessions ----
  // kNoSpace above a limit of SessionQuota, with a sentence in `*why`, unless that is null.
  Status OpenSession(const SessionOptions& session, std::string* why = nullptr);
  // The control connection ended: its leases are revoked, their slots fenced. False if it never was
  // told of a slot: then there is nothing to prove, and it is gone; else ProofOfDeath is to follow.
  bool HangUp(SessionId session);
  // The process cannot touch memory any more: its fences fall. Implies HangUp.
  void ProofOfDeath(SessionId session);
  // Any frame from the session: renews its leases' time to live.
  void SignOfLife(SessionId session);

  // ---- verbs; DESIGN names and meanings, docs/PROTOCOL.md the details ----
  Result<OpenedGroup> OpenGroup(SessionId session, const SpaceGroupSpec& spec, std::string* why);
  Status Match(const KeysQuery& query, PrefixMatch* result);
  void FinishMatch(const KeysQuery& query, PrefixMatch* result);  // applies min_tokens
  // Before an Acquire or Prefetch of the same keys: asks the shared tier for those that are not
  // here. kOk: go on. kBusy: OnSeekDone follows, then go on. All Seeks of a request together take
  // no longer than SharedUse::seek_us; *end_us is 0 at the first and the same object at the others.
  Status Seek(const KeysQuery& query, uint64_t* end_us);
  Status Acquire(const KeysQuery& query, AcquireResult* result);
  // The short way, before the first Acquire of a request that wants no slots (member_mask 0, no
  // flags): what of its first keys is ready in DRAM is held run by run, walk.walked_count blocks,
  // and Acquire goes on behind them. REQUIRES: keys.size() ≤ kReadyKeysPerTurnMax.
  Status AcquireReady(const KeysQuery& query, AcquireResult* result);
  // Applies min_tokens, sends the lease off, or releases it when nothing matched. Completions of
  // the request come from later calls only, never before the reply.
  void FinishAcquire(const KeysQuery& query, AcquireResult* result);
  Status Prefetch(const KeysQuery& query, PrefixMatch* result);
  void FinishPrefetch(const KeysQuery& query, PrefixMatch* result);
  // Call with the same result until is_finished. The joiner of blocks still coming gets completions
  // under its own request_id.
  Status JoinRead(SessionId session, uint64_t request_id, const protocol::JoinRequest& request,
                  AcquireResult* result);
  Status JoinWrite(SessionId session, const protocol::JoinRequest& request, ReserveResult* result);
  // Of a lease of the session's domain; kNotFound if the token names nothing.
  Result<LeaseShape> ShapeOf(SessionId session, const LeaseToken& token) const;
  Status Release(SessionId session, const protocol::ReleaseRequest& request);
  Status Cancel(SessionId session, uint64_t request_id);
  Status Touch(const KeysQuery& query);
  Status Renew(SessionId session, const LeaseToken& token);
  Status Reserve(const KeysQuery& query, ReserveResult* result);
  void FinishReserve(const KeysQuery& query, ReserveResult* result);
  // `checksums` holds part_count roots for every entry flagged kCommitHasChecksums, in order.
  // It may stop before the last entry, when those it passed gave enough to do: result->entries says
  // how far it came, and the next call goes on there. kCommitRelease is heeded once nothing is
  // left.
  // REQUIRES: entries.size() ≤ kBlocksPerTurnMax; of a longer Commit only the last call says
  // kCommitRelease, and results add up.
  Status Commit(SessionId session, const protocol::CommitRequest& request,
                std::span<const protocol::CommitEntry> entries, std::span<const Checksum> checksums,
                CommitResult* result);
  // parts_refused: see protocol::AbortRequest; counted with the first step of a request.
  Status Abort(SessionId session, const LeaseToken& token, std::span<const uint32_t> key_indexes,
               uint32_t parts_refused = 0);
  Status Query(const KeysQuery& query, std::vector<protocol::QueriedBlock>* blocks);
  // Pass all keys call by call, then FinishWait. kOk: go on; kUnsupported: no persistent tier;
  // kNotFound: a key is not in the cache (no Finish…).
  Status Wait(const KeysQuery& query);
  // kOk: all persisted now; kBusy: OnWaitDone follows.
  Status FinishWait(const KeysQuery& query);
  // How many lookups a key of such a query costs: more than one where all groups are asked for it.
  uint32_t KeyCost(SessionId session, uint32_t group_index) const;
  // Cursors: do at most kBlocksPerTurnMax blocks and say in *cursor whether more is left (0: done);
  // counts in *reply add up. kGone: more cursors were opened meanwhile than are kept; start again.
  // Without kEvictSubtree keys of a chain come tail first, call by call; of a dry run `gone`
  // remembers from call to call how many children of a block would have gone.
  using ChildrenGone = std::unordered_map<uint32_t, uint32_t>;
  Status Evict(const KeysQuery& query, uint64_t* cursor, protocol::EvictReply* reply,
               ChildrenGone* gone = nullptr);
  Status Pin(const KeysQuery& query, protocol::PinReply* reply);
  Status Reset(SessionId session, uint32_t group_index, uint64_t* cursor);
  // After an Evict or Reset. kOk: no successor will find what was erased, not even after a loss of
  // power; kBusy: OnWaitDone follows, with kBusy if that takes longer than
  // protocol::kErasureWaitUs. kNoSpace: too many requests are pending.
  Status AwaitErasures(SessionId session, uint64_t request_id);
  // Looks at kListBlocksMax blocks at most; reply->cursor continues.
  Status List(SessionId session, const protocol::ListRequest& request, protocol::ListReply* reply,
              std::vector<protocol::ListEntry>* entries);
  Status Unmapped(SessionId session, uint32_t segment);
  // At most kHitRateRowsMax rows; reply->next_row continues.
  Status HitRates(SessionId session, uint32_t first_row, protocol::HitRateReply* reply,
                  std::vector<protocol::HitRateRow>* rows);
  // The next keys of a chain; call until result->is_finished or no keys are left, then once
  // more with is_finished set. kNotFound: the domain has no such group.
  Status Explain(SessionId session, const GroupId& group, std::span<const BlockKey> keys,
                 ExplainResult* result);

  // ---- the device; store_device.cc ----
  // From here on the session is sent work orders, and may be answered with addresses there.
  // With `*why`: kUnsupported, there is no such tier; kNotFound, it is of another device.
  Status AttachDevice(SessionId session, std::string_view device,
                      protocol::DeviceAttachReply* reply, std::string* why);
  // kGone: the session has no such order any more; nothing was believed.
  Status OrderDone(SessionId session, const protocol::OrderDoneRequest& done,
                   std::span<const Checksum> checksums);

  // Registration turns, of all domains. AskPinTurn: StoreListener::OnPinTurn follows, at once
  // perhaps. EndPinTurn: kGone if the session neither has the turn nor waits for it.
  Status AskPinTurn(SessionId session, uint32_t* ahead_count);
  Status EndPinTurn(SessionId session);
  // Segments that another domain wants and this session has not unmapped.
  uint32_t SegmentsOwedBy(SessionId session) const;
  // For Stats.
  Status ReportDevice(SessionId session, const protocol::DeviceReport& report);

  // ---- events from other threads, posted to the store thread ----
  void OnSegmentPopulated(uint32_t domain_index, uint32_t segment, Status status);
  void OnSegmentPunched(uint32_t domain_index, uint32_t segment, Status status);
  void OnChecksumsDone(OffloadId id, std::span<const Checksum> roots);
  // The shelf has written a group's spec, or failed to.
  void OnShelfChanged(uint32_t domain_index);
  // Routers lost what they had been told: every block is told of again.
  void RepublishKvEvents();
  // Tiers report to this listener.
  TierListener& tier_listener();
  SharedTierListener& shared_listener(uint32_t domain_index);
  // Deadlines, time to live, expiry, background moves. Call when NextTimerUs() has passed.
  void OnTimer();
  // Monotonic microseconds of the next OnTimer, UINT64_MAX for never.
  uint64_t NextTimerUs() const;

  // Work done so far, beside the blocks that requests pass: whoever bounds a turn looks at what is
  // added, in blocks. See StoreSeams::work.
  uint64_t work() const;

  // True once every domain has one populated segment (or cannot get any, with the reason logged).
  bool is_ready() const;
  // ---- an online check of the persistent tier; store_fsck.cc ----
  // What the entry of the copy in this place has to say; part_checksums are valid during the turn.
  // kNotFound: block `owner` has no copy there.
  Result<BlockRecord> DescribeCopy(uint32_t domain_index, uint32_t owner,
                                   const Extent& extent) const;
  // Reads copies and compares them, in the background, within this many bytes a second; `done` is
  // called in the middle of a turn. kBusy: another such check is under way. CancelCheck: `done` is
  // not called any more.
  Status CheckCopies(uint32_t domain_index, std::vector<CopyName> copies, uint64_t bytes_per_second,
                     std::function<void(CopyFindings)> done);
  void CancelCheck(uint32_t domain_index);
  // Gives a copy up, of all members; if DRAM has the block it is written anew. kNotFound: it has
  // left already. kBusy: something is reading or writing it.
  Status DropCopy(uint32_t domain_index, const CopyName& copy, CopyFault fault);

  // ---- what the policies have learned; store_learned.cc ----
  // By the tier and the policy; what has learned nothing is not among them.
  struct Learned {
    std::string name;
    std::vector<std::byte> state;
  };
  std::vector<Learned> WhatWasLearned(uint32_t domain_index) const;
  // From what a predecessor's policy of that name said. False: there is none such here, or it does
  // not understand the state.
  bool StartFrom(uint32_t domain_index, const Learned& learned);

  // Before the end: no block at rest is verified any more.
  void StopScrub();
  // True if no block is being hashed or moved or waits for either, and what is below is persisted.
  bool is_settled() const;
  // True if nothing is on its way to a tier that hosts share, and nothing waits that could go.
  bool is_shared_idle() const;

  // Counters and sizes for status and metrics; one entry a domain.
  std::vector<DomainStats> Stats() const;

  // Aborts with the invariant's name if one of I1–I8 does not hold. kFull walks everything;
  // kIncremental looks at what changed since the last call.
  enum class CheckScope { kIncremental, kFull };
  void CheckInvariants(CheckScope scope) const;

  struct State;  // store_state.h

 private:
  std::unique_ptr<State> state_;
};

}  // namespace terrace
