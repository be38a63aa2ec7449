#include "tiers/redis/wire/redis_error.h"

#include <gtest/gtest.h>

#include "tiers/redis/wire/redis_slot.h"

namespace terrace {
namespace {

TEST(RedisErrors, TheFirstWordDecides) {
  EXPECT_EQ(ClassifyRedisError("OOM command not allowed when used memory > 'maxmemory'."),
            RedisError::kOutOfMemory);
  EXPECT_EQ(ClassifyRedisError("READONLY You can't write against a read only replica."),
            RedisError::kReadOnly);
  EXPECT_EQ(ClassifyRedisError("LOADING Redis is loading the dataset in memory"),
            RedisError::kLoading);
  EXPECT_EQ(ClassifyRedisError("WRONGPASS invalid username-password pair or user is disabled."),
            RedisError::kWrongPassword);
  EXPECT_EQ(ClassifyRedisError("ERR invalid password"), RedisError::kWrongPassword);
  EXPECT_EQ(ClassifyRedisError("NOAUTH Authentication required."), RedisError::kNoAuth);
  EXPECT_EQ(ClassifyRedisError("MOVED 3999 127.0.0.1:6381"), RedisError::kMoved);
  EXPECT_EQ(ClassifyRedisError("ERR OOM"), RedisError::kOther);
  EXPECT_EQ(ClassifyRedisError("ERR wrong number of arguments for 'pexpire' command"),
            RedisError::kWrongArguments);
  EXPECT_EQ(ClassifyRedisError("ERR unknown command 'PEXPIRE', with args beginning with: 'a' "),
            RedisError::kUnknownCommand);
  EXPECT_EQ(ClassifyRedisError("OOMPH"), RedisError::kOther);
  EXPECT_EQ(ClassifyRedisError(""), RedisError::kOther);
}

// PROMISE: T43 classes of errors
// As servers of 7.0, 7.2 and 6.2 say it.
TEST(RedisErrors, OfACommandInAScriptMeanTheSame) {
  EXPECT_EQ(ClassifyRedisError("ERR The user executing the script can't run this command or "
                               "subcommand script: 9282fe9c, on @user_script:1."),
            RedisError::kNoPermissionInScript);
  EXPECT_EQ(ClassifyRedisError("ERR ACL failure in script: User u has no permissions to run the "
                               "'set' command"),
            RedisError::kNoPermissionInScript);
  EXPECT_EQ(ClassifyRedisError("ERR Error running script (call to f_9282fe9c): @user_script:1: "
                               "@user_script: 1: -OOM command not allowed when used memory > "
                               "'maxmemory'."),
            RedisError::kOutOfMemory);
  EXPECT_EQ(ClassifyRedisError("ERR Error running script (call to f_9282fe9c): @user_script:1: "
                               "@user_script: 1: -READONLY You can't write against a read only "
                               "replica."),
            RedisError::kReadOnly);
  EXPECT_EQ(ClassifyRedisError("ERR Error running script (call to f_9282fe9c): @user_script:1: "
                               "user_script:1: attempt to index a nil value"),
            RedisError::kOther);
  EXPECT_EQ(ClassifyRedisError("ERR Error running script: -WHO knows"), RedisError::kOther);
  EXPECT_TRUE(IsWriteRefusal(RedisError::kNoPermissionInScript));
  EXPECT_EQ(ClassifyRedisError("EXECABORT Transaction discarded because of: NOPERM this user has "
                               "no permissions to run the 'exec' command"),
            RedisError::kNoPermission);
  EXPECT_EQ(ClassifyRedisError("EXECABORT Transaction discarded because of previous errors."),
            RedisError::kOther);
}

TEST(RedisErrors, HardOnesAreThoseThatAnOperatorMustEnd) {
  for (const RedisError error :
       {RedisError::kNoAuth, RedisError::kWrongPassword, RedisError::kNoPermission}) {
    EXPECT_TRUE(IsHardRedisError(error)) << RedisErrorName(error);
    EXPECT_EQ(StatusOfRedisError(error).code(), StatusCode::kUnsupported);
  }
  EXPECT_FALSE(IsHardRedisError(RedisError::kLoading));
  EXPECT_EQ(StatusOfRedisError(RedisError::kOutOfMemory).code(), StatusCode::kNoSpace);
}

TEST(RedisErrors, WhoTakesNoWritesIsToldWithTheReason) {
  const auto text = [](const char* said) {
    const RedisError error = ClassifyRedisError(said);
    EXPECT_TRUE(IsWriteRefusal(error)) << said;
    return std::string(StatusOfRedisError(error).what());
  };
  EXPECT_NE(text("MISCONF Redis is configured").find("MISCONF"), std::string::npos);
  EXPECT_NE(text("NOREPLICAS Not enough").find("NOREPLICAS"), std::string::npos);
  EXPECT_NE(text("READONLY You can't").find("READONLY"), std::string::npos);
}

// What a server was sent stands in quotation marks.
TEST(RedisErrors, OfWhatAServerSaysAPersonSeesTheFirstWords) {
  EXPECT_EQ(FirstWordsOf("DENIED Redis is running in protected mode because protected mode is "
                         "enabled and no password is set for the default user. In this mode"),
            "DENIED Redis is running in protected mode because protected mode is enabled and no "
            "password is set for the default user");
  EXPECT_EQ(FirstWordsOf("ERR max number of clients reached"), "ERR max number of clients reached");
  EXPECT_EQ(FirstWordsOf("ERR unknown command 'AUTH', with args beginning with: 'swordfish'"),
            "ERR unknown command");
  EXPECT_EQ(FirstWordsOf("ERR unknown command `AUTH`, with args: `swordfish`"),
            "ERR unknown command");
  EXPECT_EQ(FirstWordsOf("ERR what is \"swordfish\"?"), "ERR what is");
  EXPECT_EQ(FirstWordsOf("MISCONF it's not able to write"), "MISCONF it's not able to write");
  EXPECT_EQ(FirstWordsOf("ERR \x1b[31mred"), "ERR");
  EXPECT_EQ(FirstWordsOf("ERR caf\xc3\xa9"), "ERR caf");
  EXPECT_EQ(FirstWordsOf("ERR one\nERR two"), "ERR one");
  for (const char* const text : {"", "'x'", " . ", "\x01"}) EXPECT_EQ(FirstWordsOf(text), "");
  std::string words;
  while (words.size() < 1'000) words += "word ";
  EXPECT_EQ(FirstWordsOf(words), words.substr(0, 124)) << "whole words";
  EXPECT_EQ(FirstWordsOf(std::string(1'000, 'x')), std::string(kRedisSaidBytesMax, 'x'));
  const Status status(StatusCode::kBusy, "it does not answer");
  EXPECT_EQ(RedisTroubleText(status, ""), "it does not answer");
  EXPECT_EQ(RedisTroubleText(status, "ERR x"), "it does not answer (it says: ERR x)");
}

TEST(RedisErrors, ReadsARedirection) {
  const Result<RedisRedirect> moved = ParseRedisRedirect("MOVED 3999 127.0.0.1:6381");
  ASSERT_TRUE(moved.ok());
  EXPECT_EQ(moved->slot, 3999u);
  EXPECT_EQ(moved->host, "127.0.0.1");
  EXPECT_EQ(moved->port, 6381);
  EXPECT_EQ(ParseRedisRedirect("ASK 1 ::1:7000")->host, "::1");
  EXPECT_EQ(ParseRedisRedirect("ASK 1 :7000")->host, "");
  for (const char* const text :
       {"MOVED", "MOVED 1", "MOVED 16384 a:1", "MOVED x a:1", "MOVED 1 a", "MOVED 1 a:0",
        "MOVED 1 a:65536", "MOVED 1 a:1x", "ERR 1 a:1", ""}) {
    EXPECT_EQ(ParseRedisRedirect(text).code(), StatusCode::kCorrupt) << text;
  }
}

TEST(RedisSlot, IsTheSpecifications) {
  EXPECT_EQ(RedisSlotOf("123456789"), 0x31C3u);
  EXPECT_EQ(RedisSlotOf("foo"), 12182u);
  EXPECT_EQ(RedisSlotOf("a{foo}b"), 12182u);
  EXPECT_EQ(RedisSlotOf("a{foo}{bar}"), 12182u);
  EXPECT_NE(RedisSlotOf("{}foo"), 12182u) << "an empty tag is none";
}

TEST(RedisSlot, EachHasATag) {
  for (uint32_t slot = 0; slot < kRedisSlotCount; slot += slot == 0 ? 62 : 53) {
    EXPECT_EQ(RedisSlotOf("a{" + RedisTagOf(slot) + "}"), slot);
  }
  EXPECT_EQ(RedisSlotOf("{" + RedisTagOf(kRedisSlotCount - 1) + "}"), kRedisSlotCount - 1);
}

}  // namespace
}  // namespace terrace
