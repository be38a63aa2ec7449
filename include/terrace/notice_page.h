// The notice page: memory that a daemon writes and each client of the domain has mapped to read, so
// that a client is told by a load, before it asks anything. Its descriptor comes with Hello.
#pragma once

#include <atomic>
#include <cstdint>

#include "terrace/protocol_admin.h"
#include "terrace/units.h"

namespace terrace {

inline constexpr uint64_t kNoticePageBytes = 4 * kKiB;
inline constexpr uint32_t kNoticeMagic = 0x314e5254;  // "TRN1"

struct NoticePage {
  std::atomic<uint32_t> magic;
  std::atomic<uint32_t> mode;  // protocol::ServingMode; what is not known is kServing
};
static_assert(sizeof(NoticePage) == 8 && std::atomic<uint32_t>::is_always_lock_free);

}  // namespace terrace
