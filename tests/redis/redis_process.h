// RedisProcess: a redis-server of the test's own, in a directory of its own, on a Unix socket and
// on a port of the loopback that was free a moment ago; gone with the object. And RawRedis, a plain
// blocking client to look at what is there and to damage it.
#pragma once

#include <sys/types.h>

#include <cstdint>
#include <initializer_list>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "tiers/redis/wire/redis_endpoint.h"

struct redisContext;
struct redisReply;

namespace terrace::testing {

// The program, or "": then the test says loudly that it is skipped.
std::string FindProgram(const std::string& name);

// In a test's body, first of all.
#define TERRACE_NEEDS_REDIS()                                                         \
  if (::terrace::testing::FindProgram("redis-server").empty()) {                      \
    GTEST_SKIP() << "SKIPPED: redis-server is not installed; run tools/setup to test" \
                    " the Redis tier";                                                \
  }

struct FreeRedisReply {
  void operator()(redisReply* reply) const;
};
using RawReply = std::unique_ptr<redisReply, FreeRedisReply>;

class RawRedis {
 public:
  // Null if nobody answers.
  static std::unique_ptr<RawRedis> Connect(const RedisEndpoint& endpoint);
  ~RawRedis();

  // Null: the connection failed.
  RawReply Command(const std::vector<std::string>& words);
  long long Integer(const std::vector<std::string>& words);
  std::string Text(const std::vector<std::string>& words);  // of a string, status or error
  std::vector<std::string> Keys();
  std::vector<std::string> BlockKeys();  // without groups' generations
  // That the test's group has none: then its keys are those of no generation.
  void SayNoGeneration();
  // How often the server has answered `-<word> …` to anybody.
  uint64_t ErrorsAnswered(const std::string& word);

 private:
  explicit RawRedis(redisContext* context) : context_(context) {}
  redisContext* const context_;
};

class RedisProcess {
 public:
  struct Options {
    std::vector<std::string> arguments;  // beside port, socket and directory
    std::string program = "redis-server";
    std::string config;          // lines of a file; the file is named first
    std::string user, password;  // of those who look
    uint16_t port = 0;           // 0: any
    bool waits_until_ready = true;
  };
  explicit RedisProcess(Options options);
  RedisProcess() : RedisProcess(Options{}) {}
  ~RedisProcess();

  void Kill();   // -9
  void Start();  // again, on the same port and socket, empty
  void Pause();
  void Resume();

  RedisEndpoint unix_endpoint() const { return {.unix_path = directory_ + "/socket"}; }
  RedisEndpoint tcp_endpoint() const { return {.host = "127.0.0.1", .port = port_}; }
  const std::string& directory() const { return directory_; }
  pid_t pid() const { return pid_; }
  uint16_t port() const { return port_; }
  std::unique_ptr<RawRedis> Connect() const;

 private:
  const Options options_;
  std::string directory_;
  uint16_t port_ = 0;
  pid_t pid_ = -1;
};

uint16_t FreePort();

}  // namespace terrace::testing
