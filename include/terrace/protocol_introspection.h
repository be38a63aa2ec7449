// Frames for those who look after a daemon: what hits and misses are made of, why a prefix ends,
// recording what is asked. Like protocol.h, of frame version 1; a daemon that does not know them
// answers "invalid". libterrace does not speak them, so engines need not know this header.
#pragma once

#include <array>
#include <cstdint>

#include "terrace/protocol.h"

namespace terrace::protocol {

inline constexpr Verb kVerbHitRate{21};
inline constexpr Verb kVerbExplain{22};
inline constexpr Verb kVerbTraceRecord{23};
inline constexpr Verb kVerbFsck{24};
inline constexpr Verb kVerbLast{34};  // protocol_device.h, _admin.h, _operator.h have the rest

// Why a block that was asked for was not there.
enum class MissCause : uint8_t {
  kCold = 0,       // never seen, or longer ago than is remembered
  kCapacity = 1,   // evicted to make room
  kQuota = 2,      // no room could be made for it, or its room went back to another domain
  kAdmission = 3,  // evicted from DRAM, and not worth writing below
  kExpired = 4,    // past its time to live
  kMismatch = 5,   // there, but not what this reader may have or needs
  kCorrupt = 6,    // its bytes were not those that were stored
  kLate = 7,       // being written, could not be brought up, or promised and did not come in time
  kOperator = 8,   // evicted by a person
};
inline constexpr uint8_t kMissCauseCount = 9;

inline constexpr uint32_t kHitRateAllGroups = 0xFFFFFFFF;
inline constexpr std::array<uint32_t, 3> kHitRateWindowMinutes = {1, 10, 60};
inline constexpr uint32_t kHitRateWindows = 4;  // those, and since the start
// Capacities that are tried, in halves of what a tier has: 0.5×, 1×, 2×, 4×.
inline constexpr std::array<uint32_t, 4> kHitRateFactorsHalves = {1, 2, 4, 8};
inline constexpr uint32_t kHitRateRowsMax = 32;

// Blocks, of Acquires. What a smaller or larger tier would hit is estimated for sampled_asked of
// blocks_asked; a sum of estimates is signed, and may be a little below 0 where few were asked.
struct HitRateCounts {
  uint64_t requests = 0;
  uint64_t blocks_asked = 0;
  uint64_t blocks_hit[kTierKindCount] = {};
  uint64_t blocks_missed[kMissCauseCount] = {};
  uint64_t saved_us = 0;  // of prefill, as far as clients said what it costs
  uint64_t sampled_asked = 0;
  uint64_t sampled_hit_if_dram[4] = {};   // DRAM alone, by kHitRateFactorsHalves
  uint64_t sampled_hit_if_below[4] = {};  // with the tier below so large
};
// Body: HitRateRequest. Reply body: HitRateReply, then row_count HitRateRows: of the whole domain,
// then of each group.
struct HitRateRequest {
  uint32_t first_row = 0;
  uint32_t reserved = 0;
};
struct HitRateReply {
  uint64_t dram_bytes = 0;   // the domain's at most
  uint64_t below_bytes = 0;  // 0: there is no tier below
  uint32_t row_count = 0;
  uint32_t next_row = 0;       // 0: the end
  uint32_t sample_weight = 0;  // blocks that one of the sample stands for
  TierKind below_kind = TierKind::kNvme;
  uint8_t reserved[3] = {};
};
struct HitRateRow {
  GroupId group;  // zero: the whole domain
  HitRateCounts windows[kHitRateWindows];
};

// Why a prefix ends where it ends.
enum class StopReason : uint8_t {
  kNone = 0,          // every key is there
  kNeverSeen = 1,     // or longer ago than is remembered
  kForgotten = 2,     // was there; ExplainReply::cause says why it left, age_ms how long ago
  kExpired = 3,       // still there, but past its time to live
  kBeingWritten = 4,  // by writer_session, for age_ms
  kTierOff = 5,       // only in a tier that is switched off after errors
  kUnverified = 6,    // not told any more: what is not verified yet is waited for
  kWindow = 7,        // a windowed member's bytes are missing
};
// Body: ExplainRequest, then key_count BlockKeys, a chain from the root. Reply body: ExplainReply,
// then near_count ExplainNears; with kExplainMembers the group's members behind them, each as Open
// takes it: OpenMember and its canonical text.
inline constexpr uint32_t kExplainMembers = 1;
struct ExplainRequest {
  GroupId group;
  uint32_t key_count = 0;
  uint32_t flags = 0;  // kExplainMembers; a daemon of 0.1.0 answers as without
};
struct ExplainReply {
  uint32_t key_count = 0;
  uint32_t block_count = 0;  // usable
  uint32_t dram_count = 0;   // of those, ready in DRAM
  uint32_t below_count = 0;  // of those, in a tier below
  uint32_t eta_us = 0;       // until they would be ready
  uint32_t stop_index = 0;   // the first key that is not there
  uint64_t age_ms = 0;
  uint64_t writer_session = 0;
  uint32_t near_count = 0;
  StopReason reason = StopReason::kNone;
  MissCause cause = MissCause::kCold;  // of kForgotten
  TierKind below_kind = TierKind::kNvme;
  uint8_t reserved = 0;
};
// A group whose Spaces differ from those asked for in one field. Texts are cut and NUL-padded.
inline constexpr uint32_t kExplainNearMax = 16;
struct ExplainNear {
  GroupId group;
  uint64_t block_count = 0;
  uint32_t block_tokens = 0;
  uint32_t reserved = 0;
  char name[64] = {};
  char field[32] = {};
  char asked[64] = {};  // its value in the group asked about
  char other[64] = {};
};

enum class TraceAction : uint32_t { kStatus = 0, kStart = 1, kStop = 2 };
// Starts or stops recording the domain's requests, where the configuration names a directory.
struct TraceRecordRequest {
  TraceAction action = TraceAction::kStatus;
  uint32_t reserved = 0;
};
struct TraceRecordReply {
  uint64_t record_count = 0;
  uint64_t dropped_count = 0;  // the file could not be written as fast
  uint64_t written_bytes = 0;
  uint64_t file_bytes_max = 0;  // then the file before it goes
  uint32_t is_recording = 0;
  int32_t error = 0;  // errno of the last failure
  char path[256] = {};
};

// Holds some slots of the persistent tier against index and catalog; cursor after cursor, all of
// them. The answer is a JSON document, docs/PROTOCOL.md.
inline constexpr uint32_t kFsckVerify = 1;  // read the blocks, too, and check their bytes
inline constexpr uint32_t kFsckRepair = 2;  // give up what differs
inline constexpr uint32_t kFsckAudit = 4;   // nothing but that: who erased what, of late
inline constexpr uint32_t kFsckAuditLinesMax = 256;
inline constexpr uint32_t kFsckSlotsMax = 256;  // of an answer
inline constexpr uint64_t kFsckBytesPerSecondMax = uint64_t{64} << 30;
struct FsckRequest {
  uint64_t cursor = 0;                   // 0, then next_cursor of the answer before
  uint64_t verify_bytes_per_second = 0;  // > 0 with kFsckVerify, at most kFsckBytesPerSecondMax
  uint32_t flags = 0;
  uint32_t reserved = 0;
};

// Sizes are part of the protocol.
static_assert(sizeof(FsckRequest) == 24);
static_assert(sizeof(HitRateCounts) == 200 && sizeof(HitRateRow) == 816);
static_assert(sizeof(HitRateRequest) == 8 && sizeof(HitRateReply) == 32);
static_assert(sizeof(ExplainRequest) == 24 && sizeof(ExplainReply) == 48);
static_assert(sizeof(ExplainNear) == 256);
static_assert(sizeof(TraceRecordRequest) == 8 && sizeof(TraceRecordReply) == 296);

}  // namespace terrace::protocol
