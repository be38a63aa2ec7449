#include "tiers/redis/wire/denied_commands.h"

#include <gtest/gtest.h>

#include <string>

namespace terrace {
namespace {

// As servers of 7.0 and 7.2 say it.
TEST(DeniedCommands, AreNamedWithTheUserAndTriedAgainNowAndThen) {
  DeniedCommands denied;
  EXPECT_EQ(denied.TextOfReads("cache"), "");
  denied.OnDenied("MGET", "NOPERM this user has no permissions to run the 'mget' command", false,
                  100);
  EXPECT_EQ(denied.TextOfReads("cache"),
            "does not let user cache run MGET (docs/REDIS_FORMAT.md lists what it must allow)");
  EXPECT_EQ(denied.TextOfOthers("cache"), "");
  EXPECT_TRUE(denied.IsPaused("MGET", 100 + DeniedCommands::kPauseUs - 1));
  EXPECT_FALSE(denied.IsPaused("MGET", 100 + DeniedCommands::kPauseUs));
  EXPECT_FALSE(denied.IsPaused("GET", 100));
  // Of a transaction, what is in it.
  denied.OnDenied("MULTI", "NOPERM User cache has no permissions to run the 'msetnx' command",
                  false, 100);
  denied.OnDenied("CLUSTER",
                  "NOPERM User cache has no permissions to run the 'cluster|slots' command", false,
                  100);
  EXPECT_EQ(denied.TextOfOthers(""),
            "does not let the default user run MSETNX, CLUSTER (docs/REDIS_FORMAT.md lists what it "
            "must allow)");
  EXPECT_TRUE(denied.OnLet("MULTI"));
  EXPECT_TRUE(denied.OnLet("CLUSTER"));
  EXPECT_FALSE(denied.OnLet("CLUSTER"));
  EXPECT_EQ(denied.TextOfOthers(""), "");
  EXPECT_NE(denied.TextOfReads(""), "");
  EXPECT_TRUE(denied.OnLet("MGET"));
  EXPECT_TRUE(denied.is_empty());
}

TEST(DeniedCommands, OfKeysThePrefixIsNamed) {
  DeniedCommands denied;
  denied.OnDenied("GET", "NOPERM No permissions to access a key", false, 1);
  EXPECT_EQ(denied.TextOfReads("cache"),
            "does not let user cache run GET on keys that begin with redis.prefix "
            "(docs/REDIS_FORMAT.md lists what it must allow)");
}

// Another script may be let: none waits for it. And not every server says what was in it.
TEST(DeniedCommands, OneInAScriptKeepsNoOtherScriptBack) {
  DeniedCommands denied;
  denied.OnDenied("EVAL", "ERR The user executing the script can't run this command or subcommand",
                  true, 1);
  EXPECT_FALSE(denied.IsPaused("EVAL", 1));
  EXPECT_EQ(denied.TextOfOthers("cache"), "");
  denied.OnDenied("EVAL",
                  "ERR ACL failure in script: User u has no permissions to run the 'set' command",
                  true, 1);
  EXPECT_FALSE(denied.IsPaused("EVAL", 1));
  EXPECT_EQ(denied.TextOfOthers("cache").find("does not let user cache run SET ("), 0u);
}

// It may quote anything, a password that it was sent, too.
TEST(DeniedCommands, NothingElseThatAServerSaysIsShown) {
  for (const std::string said :
       {"NOPERM User swordfish has no permissions to run the 'swordfish' command",
        "NOPERM 'swordfish'", "NOPERM '", "NOPERM swordfish' command", "swordfish"}) {
    DeniedCommands denied;
    denied.OnDenied("GET", said, false, 1);
    EXPECT_EQ(denied.TextOfReads("cache").find("does not let user cache run GET"), 0u);
    EXPECT_EQ(denied.TextOfReads("cache").find("swordfish"), std::string::npos);
  }
  DeniedCommands denied;
  denied.OnDenied("GET", "", false, 1);
  for (const std::string user : {"two words", "a\nline", "quo\"ted", "caf\xc3\xa9"}) {
    EXPECT_EQ(denied.TextOfReads(user).find("does not let this user run GET"), 0u) << user;
  }
}

}  // namespace
}  // namespace terrace
