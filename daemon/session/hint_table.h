// Which verb takes which hint: the table of docs/PROTOCOL.md, Hints. A hint is honoured or refused
// by name, never passed over: but for a pin without an end of who is no admin, where the
// configuration names admins. That is left out, and counted.
//
// Pure.
#pragma once

#include <cstdint>

#include "terrace/error.h"
#include "terrace/protocol.h"

namespace terrace {

enum class Hint : uint8_t {
  kDeadline,
  kRecompute,
  kSession,
  kTtl,
  kMinTokens,
  kExpectedReuse,
  kEndReason,
  kPriority,
  kPin,
  kNoStore,
  kExact,
  kByVerb,
};
inline constexpr uint32_t kHintCount = 12;

bool TakesHint(protocol::Verb verb, Hint hint);

// kInvalid: a hint that says something the verb has no use for, or nothing sensible.
Error CheckHints(protocol::Verb verb, const protocol::Hints& hints);

}  // namespace terrace
