#include "src/masked_address.h"

#include <gtest/gtest.h>

#include <string>
#include <vector>

namespace terrace {
namespace {

TEST(MaskedAddress, ShowsWhereAndNotWithWhichSecret) {
  EXPECT_EQ(MaskedAddress("redis://user:planted@host:6379/0"), "redis://user:***@host:6379/0");
  EXPECT_EQ(MaskedAddress("rediss://:planted@host:6379"), "rediss://:***@host:6379");
  EXPECT_EQ(MaskedAddress("redis://planted@host:6379"), "redis://***@host:6379");
  EXPECT_EQ(MaskedAddress("user:planted@host:6379"), "user:***@host:6379");
  EXPECT_EQ(MaskedAddress("unix://user:planted@/run/redis.sock"),
            "unix://user:***@/run/redis.sock");
  EXPECT_EQ(MaskedAddress("redis://host:6379?password=planted"), "redis://host:6379?***");
  EXPECT_EQ(MaskedAddress("host:6379,password=planted,ssl=True"), "host:6379,***");
  EXPECT_EQ(MaskedAddress("redis://user:planted@host?x=planted"), "redis://user:***@host?***");
}

TEST(MaskedAddress, WhatHasNoLoginIsShownAsItIs) {
  for (const std::string text : {"", "host:6379", "[fe80::1]:6379", "unix:/run/redis.sock",
                                 "redis://host:6379/0", "tcp://*:5557"}) {
    EXPECT_EQ(MaskedAddress(text), text);
  }
}

// Where it begins and ends cannot be told: nothing of it is shown.
// PROMISE: T39 a login in an address
TEST(MaskedAddress, OfASecretWithAnyBytesNothingIsShown) {
  for (const std::string secret :
       {"pl@nted", "pl@nt:ed", "pl?nted", "pl#nt@ed", "pl/nted", "pl,nt;ed", "pl:nted", "pl nted",
        "pl://nted", "@nted", "://nted", "pl@nt@ed"}) {
    for (const std::string front : {"redis://user:", "redis://:", "redis://", "user:", ":", ""}) {
      const std::string shown = MaskedAddress(front + secret + "@host:6379");
      EXPECT_EQ(shown.find("nt"), shown.npos) << front + secret << " is shown as " << shown;
    }
    for (const std::string front : {"redis://host?password=", "host:6379,password=", "host "}) {
      const std::string shown = MaskedAddress(front + secret);
      EXPECT_EQ(shown.find("nt"), shown.npos) << front + secret << " is shown as " << shown;
    }
  }
}

}  // namespace
}  // namespace terrace
