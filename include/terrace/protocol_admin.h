// Frames with which an administrator rules over a daemon: drain and bypass a domain, read and
// change the configuration. Like protocol.h, of frame version 1; a daemon that does not know them
// answers "invalid". libterrace does not send them; of bypassing it is told by the notice page
// (notice_page.h).
#pragma once

#include <cstdint>

#include "terrace/protocol.h"
#include "terrace/protocol_device.h"
#include "terrace/protocol_introspection.h"

namespace terrace::protocol {

inline constexpr Verb kVerbDrain{29};
inline constexpr Verb kVerbConfig{30};
static_assert(kVerbDrain > kVerbDeviceReport && kVerbLast > kVerbConfig);

// What a domain does with requests for something new: a lease, slots, a prefetch.
enum class ServingMode : uint32_t {
  kServing = 0,
  kDraining = 1,  // answers "busy"; what is held is served to its end
  kBypassed = 2,  // so, but lookups are misses and stores "no space"; clients do not even ask
};
enum class DrainAction : uint32_t { kStatus = 0, kDrain = 1, kBypass = 2, kResume = 3 };

// Body: DrainRequest. Reply body: DrainReply.
struct DrainRequest {
  DrainAction action = DrainAction::kStatus;
  uint32_t reserved = 0;
};
struct DrainReply {
  ServingMode mode = ServingMode::kServing;
  uint32_t is_done = 0;       // nothing of what follows is left, and all disks are at rest
  uint64_t since_unix_s = 0;  // of a mode that is not kServing
  uint32_t by_uid = 0;        // who asked for it
  int32_t kept_error = 0;     // errno: a restart of the daemon would not find the domain bypassed
  uint32_t session_count = 0;
  uint32_t lease_count = 0;
  uint64_t leased_blocks = 0;
  uint64_t leased_bytes = 0;     // and these, at the mean size of the domain's blocks
  uint64_t reserved_blocks = 0;  // being written by clients
  uint64_t unwritten_blocks = 0;
  uint64_t unwritten_bytes = 0;    // not safe in the tiers below yet, likewise
  uint64_t shared_bytes = 0;       // waiting to be stored in the shared tier
  uint64_t requests_unserved = 0;  // answered so, since the daemon began
};

// Body: ConfigRequest, then UTF-8: of kGet nothing (every key) or a key; of kSet "KEY=VALUE", or up
// to 16 of them with '\n' between, of which all are set or none is (a daemon that knows only one
// refuses them all); of kReload and kQuota nothing. Reply body: a JSON document,
// docs/OPERATIONS.md. kQuota: what each domain has of each tier, and may have; a daemon that does
// not know it answers "invalid".
enum class ConfigAction : uint32_t { kGet = 0, kSet = 1, kReload = 2, kQuota = 3 };
inline constexpr uint32_t kConfigTextBytesMax = 8192;
struct ConfigRequest {
  ConfigAction action = ConfigAction::kGet;
  uint32_t reserved = 0;
};

static_assert(sizeof(ConfigRequest) == 8);
static_assert(sizeof(DrainRequest) == 8 && sizeof(DrainReply) == 88);

}  // namespace terrace::protocol
