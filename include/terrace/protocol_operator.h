// Frames with which operators rule over what a domain keeps, beside those of protocol.h: evicting
// by filters, pins that have a name, what operators have done of late, and what was slow. Like
// protocol.h, of frame version 1; a daemon that does not know them names the verb, answers
// "invalid" and closes. libterrace does not speak them.
#pragma once

#include <cstdint>

#include "terrace/protocol.h"
#include "terrace/protocol_admin.h"
#include "terrace/protocol_introspection.h"

namespace terrace::protocol {

inline constexpr Verb kVerbEvictWhere{31};
inline constexpr Verb kVerbNamedPin{32};
inline constexpr Verb kVerbOperatorLog{33};
inline constexpr Verb kVerbDiagnose{34};
static_assert(kVerbEvictWhere > kVerbConfig && kVerbLast == kVerbDiagnose);

// ---- EvictWhere -----------------------------------------------------------------------------
inline constexpr uint32_t kEvictWhereDryRun = 1;
// What the shared tier has of them goes, too. Where neither a tier nor an age is named it goes
// without this, and this destroys the groups' encryption keys.
inline constexpr uint32_t kEvictWhereShared = 2;
inline constexpr uint8_t kEvictWhereAllTiers = 255;
// A filter is refused where its age is beyond this: 100 years.
inline constexpr uint64_t kEvictWhereIdleMsMax = uint64_t{36'525} * 24 * 3'600 * 1'000;

// Body: EvictWhereRequest. Reply body: EvictReply; `block_count` counts copies where a tier is
// named. Of tier kRedis, or of all tiers, without an age all of the groups is forgotten there,
// which nobody counts.
struct EvictWhereRequest {
  GroupId group;             // zero: every group of the domain
  uint64_t idle_ms_min = 0;  // only what was last used so long ago
  uint32_t flags = 0;
  uint8_t tier = kEvictWhereAllTiers;  // a TierKind: only the copies there go
  uint8_t reserved[3] = {};
};

// ---- NamedPin -------------------------------------------------------------------------------
enum class PinAction : uint32_t {
  kList = 0,   // with keys: only pins that keep one of those
  kSet = 1,    // makes the pin, or adds to it; what it says of cap and TTL holds for all of it
  kClear = 2,  // its blocks are as any others
};
inline constexpr uint32_t kPinNameBytes = 48;  // its last one is 0
inline constexpr uint32_t kNamedPinsMax = 64;  // of a domain
inline constexpr uint32_t kNamedPinBlocksMax = 1 << 18;

// Body: NamedPinRequest, then key_count BlockKeys. Reply body: NamedPinReply, then entry_count
// NamedPinEntries: of kSet the pin as it is now, of kClear as it was.
struct NamedPinRequest {
  char name[kPinNameBytes] = {};  // letters, digits, '.', '_' and '-'; empty with kList
  uint64_t cap_bytes = 0;         // of kSet: its blocks' bytes at most, > 0
  uint32_t ttl_s = 0;             // of kSet: 0 is until kClear
  uint32_t key_count = 0;
  PinAction action = PinAction::kList;
  uint32_t flags = 0;  // none is known yet; others are refused
};
struct NamedPinReply {
  uint64_t left_out_count = 0;  // of kSet: blocks beyond the cap
  uint32_t missing_count = 0;   // of kSet: keys of which there is no block
  uint32_t entry_count = 0;
};
struct NamedPinEntry {
  char name[kPinNameBytes] = {};
  uint64_t cap_bytes = 0;
  uint64_t byte_count = 0;
  uint64_t age_ms = 0;  // since it was made or added to
  uint32_t block_count = 0;
  uint32_t expires_in_s = 0;  // 0: never
  uint32_t uid = 0;           // who made it or added to it last
  uint32_t reserved = 0;
};

// ---- OperatorLog ----------------------------------------------------------------------------
inline constexpr uint32_t kOperatorLogMax = 256;  // entries that are kept, of a domain

// Body: OperatorLogRequest. Reply body: OperatorLogReply, then entry_count OperatorLogEntries, the
// latest first.
struct OperatorLogRequest {
  uint32_t entry_count_max = kOperatorLogMax;
  uint32_t reserved = 0;
};
struct OperatorLogReply {
  uint64_t event_count = 0;  // since the daemon's start, those that are not kept any more too
  uint32_t entry_count = 0;
  uint32_t reserved = 0;
};
struct OperatorLogEntry {
  uint64_t age_ms = 0;
  uint64_t block_count = 0;
  uint64_t byte_count = 0;
  GroupId group;  // zero: every group, or none
  uint32_t uid = 0;
  uint32_t pid = 0;  // 0: of a PID namespace that is not the daemon's to see
  Verb verb = Verb::kHello;
  uint8_t is_whole = 1;  // 0: it ended before it was through
  // What refused it, where nothing was done; kOk of a daemon that does not tell, too.
  StatusCode status = StatusCode::kOk;
  uint8_t reserved[5] = {};
  char client_name[32] = {};  // NUL-padded, printable
  char detail[88] = {};       // what was asked, e.g. "idle_s=7200 tier=nvme"
};

// ---- Diagnose -------------------------------------------------------------------------------
enum class DiagnoseAction : uint32_t {
  kSlowRequests = 0,       // of the domain, the latest first
  kResetSlowRequests = 1,  // the same, which are forgotten then
  kLogLines = 2,           // the last ones of the daemon's log, of all domains, the latest last
};
// Body: DiagnoseRequest. Reply body: a JSON document, see docs/OPERATIONS.md.
struct DiagnoseRequest {
  DiagnoseAction action = DiagnoseAction::kSlowRequests;
  uint32_t row_count_max = 256;
};

static_assert(sizeof(DiagnoseRequest) == 8);
static_assert(sizeof(EvictWhereRequest) == 32);
static_assert(sizeof(NamedPinRequest) == 72 && sizeof(NamedPinReply) == 16);
static_assert(sizeof(NamedPinEntry) == 88);
static_assert(sizeof(OperatorLogRequest) == 8 && sizeof(OperatorLogReply) == 16);
static_assert(sizeof(OperatorLogEntry) == 176);

}  // namespace terrace::protocol
