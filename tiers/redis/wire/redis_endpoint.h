// Where a Redis server listens, how one logs in to it, and what is waited for how long: what every
// connection to it is made from.
//
// LIMITS: every field has a default that bounds something; none may be zero.
#pragma once

#include <cstdint>
#include <string>

#include "terrace/status.h"
#include "terrace/units.h"

namespace terrace {

struct RedisEndpoint {
  std::string host;       // name or address
  uint16_t port = 0;      // with `host`
  std::string unix_path;  // instead of them

  friend bool operator==(const RedisEndpoint&, const RedisEndpoint&) = default;
};

enum class RedisTopology : uint8_t { kSingle, kSentinel, kCluster };

// "host:port", "[v6 address]:port", or "unix:/path". ParseRedisEndpoint reads the same. kInvalid
// with `*why`.
std::string ToText(const RedisEndpoint& endpoint);
Result<RedisEndpoint> ParseRedisEndpoint(const std::string& text, std::string* why);

// What a server is told at login. Wiped when it goes; nothing prints it.
struct RedisCredentials {
  std::string user;  // empty: the server's default user
  std::string password;

  RedisCredentials() = default;
  RedisCredentials(RedisCredentials&&) = default;
  RedisCredentials& operator=(RedisCredentials&&) = default;
  RedisCredentials(const RedisCredentials&) = delete;
  ~RedisCredentials();
};
// Overwrites what the string held.
void WipeText(std::string* text);
// The file has one line, the password, or two, the user and the password. It is a regular file of
// root's or this process's user, without any permission for group or others. kNotFound, kInvalid,
// kIo; `*why` names the file and the remedy, never what is in it.
Status ReadRedisCredentials(const std::string& path, RedisCredentials* credentials,
                            std::string* why);

// How long a command may take: `command_us` and the time that all bytes before its answer need.
struct RedisTimeouts {
  uint64_t connect_us = 200 * kUsPerMs;
  uint64_t command_us = 50 * kUsPerMs;
  uint64_t bytes_per_second = 100'000'000;

  uint64_t CommandUs(uint64_t bytes) const {
    return command_us + bytes * kUsPerSecond / bytes_per_second;
  }
};

}  // namespace terrace
