// What an error reply of a Redis server means for whoever asked: the first word decides. Of a
// server's text a person is shown the first words at most: it may quote what it was sent.
//
// Pure.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

#include "terrace/status.h"

namespace terrace {

inline constexpr size_t kRedisSaidBytesMax = 128;
// Servers that keys are taken to one by one answer so, whoever they are.
inline constexpr Status kRedisIsOfCluster(
    StatusCode::kUnsupported,
    "the Redis server is a node of a Redis Cluster: set redis.mode = \"cluster\"");
inline constexpr Status kRedisKeepsNoKeys(StatusCode::kUnsupported,
                                          "what answers as the Redis server does not know PEXPIRE: "
                                          "it keeps no keys. If it is a Sentinel, "
                                          "set redis.mode = \"sentinel\"");

enum class RedisError : uint8_t {
  kNone,
  // Soft: this server, just now.
  kOutOfMemory,  // maxmemory without eviction; reads go on
  kReadOnly,     // a replica
  kMisconfigured,
  kNoReplicas,
  kNoPermissionInScript,  // what is done without a script goes on
  kNoPermissionToWrite,   // kNoPermission, of what writes
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
  kUnknownCommand,  // by a server of another kind
  kOther,
};

// What of us or of a server has to be another before it can serve us. An operator must act.
enum class RedisRefusal : uint8_t {
  kNone,
  kLogin,        // or a permission
  kCertificate,  // its or ours
  kKind,         // it is no server of the kind that was configured
};

RedisError ClassifyRedisError(std::string_view text);
std::string_view RedisErrorName(RedisError error);
// For a person: no more than a sentence of kRedisSaidBytesMax, nothing that is not printable, and
// nothing from the first quotation on.
std::string FirstWordsOf(std::string_view text);
// `status` in words, with what the server said, if anything.
std::string RedisTroubleText(Status status, std::string_view said);

// True: the server refuses whoever we are; false for all that may pass.
bool IsHardRedisError(RedisError error);
// True: writes are refused, reads are not.
bool IsWriteRefusal(RedisError error);
// Of these whether it is the ACL that forbids it: whoever else may.
bool IsWriteDenial(RedisError error);
// Counts against the server: it is there, but cannot work now.
bool IsSoftRedisError(RedisError error);
// The key lives elsewhere.
bool IsRedirect(RedisError error);
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
