#include "tiers/redis/wire/redis_endpoint.h"

#include <gtest/gtest.h>

namespace terrace {
namespace {

TEST(RedisEndpoint, WhatIsReadIsWrittenTheSameWay) {
  for (const std::string text :
       {"redis.example:6379", "10.0.0.1:1", "[fe80::1]:65535", "unix:/run/redis/redis.sock"}) {
    std::string why;
    const Result<RedisEndpoint> endpoint = ParseRedisEndpoint(text, &why);
    ASSERT_TRUE(endpoint.ok()) << why;
    EXPECT_EQ(ToText(*endpoint), text);
  }
}

TEST(RedisEndpoint, WhatIsNoAddressIsRefusedAndNamed) {
  for (const std::string text :
       {"", "redis", ":6379", "redis:", "redis:0", "redis:65536", "redis:6379x", "a:b:1", "[]:1",
        "[[a]]:1", "[a:1", "a]:1", "[a]b]:1", "unix:redis.sock", "a/b:1"}) {
    std::string why;
    EXPECT_EQ(ParseRedisEndpoint(text, &why).code(), StatusCode::kInvalid) << text;
    EXPECT_NE(why.find("'" + text + "'"), std::string::npos) << why;
  }
}

TEST(RedisEndpoint, ALoginInItIsRefusedAndNotShown) {
  for (const std::string text :
       {"redis://user:planted@host:6379", "planted@host:6379", "user:planted@host:6379",
        "redis://:planted@host", "host:6379?password=planted", "host,password=planted:6379",
        "[::1]:6379,password=planted", "unix://:planted@/run/redis.sock"}) {
    std::string why;
    EXPECT_EQ(ParseRedisEndpoint(text, &why).code(), StatusCode::kInvalid) << text;
    EXPECT_EQ(why.find("planted"), std::string::npos) << why;
    EXPECT_NE(why.find("redis.credentials_file"), std::string::npos) << why;
  }
}

}  // namespace
}  // namespace terrace
