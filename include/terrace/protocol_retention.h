// What the ttl_s of Hints is a time of, where a request says more than that the blocks are to be
// forgotten so long after it: flags beside those of protocol.h. An older daemon refuses them.
#pragma once

#include <cstdint>

#include "terrace/protocol.h"

namespace terrace::protocol {

// The blocks are forgotten ttl_s after the last time that they were asked for. How much later than
// that: an eighth of ttl_s at most, so that a hit mostly costs no new record.
inline constexpr uint8_t kHintTtlFromHits = 8;
// ttl_s is how long `priority` holds; then it is kPriorityDefault again, and the blocks stay. A
// restart of the daemon makes it one without an end.
inline constexpr uint8_t kHintTtlOfPriority = 16;

}  // namespace terrace::protocol
