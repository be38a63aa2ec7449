// What an error reply of a Redis server means for whoever asked: the first word decides. A server's
// text is never shown whole: it may quote what it was sent.
//
// Pure.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "terrace/status.h"

namespace terrace {

enum class RedisError : uint8_t {
  kNone,
  // Soft: this server, just now.
  kOutOfMemory,  // maxmemory without eviction; reads go on
  kReadOnly,     // a replica
  kMisconfigured,
  kNoReplicas,
  kLoading,
  kBusyScript,
  kClusterDown,
  kTryAgain,
  kMasterDown,
  // Hard: asking again soon will not help; an operator will.
  kNoAuth,
  kWrongPassword,
  kNoPermission,
  // Cluster: the key lives elsewhere, for good (moved) or for this once (ask).
  kMoved,
  kAsk,
  kCrossSlot,
  // Faults of the command itself.
  kWrongType,       // the key holds no string: somebody else wrote it
  kTooLong,         // of our own: the value is beyond any limit, so somebody else wrote it
  kWrongArguments,  // an older server, which knows fewer
  kOther,
};

RedisError ClassifyRedisError(std::string_view text);
std::string_view RedisErrorName(RedisError error);

// True: the server refuses whoever we are; false for all that may pass.
bool IsHardRedisError(RedisError error);
// True: writes are refused, reads are not.
bool IsWriteRefusal(RedisError error);
// Counts against the server: it is there, but cannot work now.
bool IsSoftRedisError(RedisError error);
// The key holds what we never wrote.
bool IsForeignRedisValue(RedisError error);
// The status for the caller.
Status StatusOfRedisError(RedisError error);

struct RedisRedirect {
  uint32_t slot = 0;
  std::string host;  // empty: the one that answered
  uint16_t port = 0;
};
// Reads "MOVED 3999 127.0.0.1:6381" and "ASK …". kCorrupt: it is neither.
Result<RedisRedirect> ParseRedisRedirect(std::string_view text);

}  // namespace terrace
