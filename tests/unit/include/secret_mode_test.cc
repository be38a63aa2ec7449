#include "terrace/secret_mode.h"

#include <gtest/gtest.h>

#include <cstdlib>

namespace terrace {
namespace {

class SecretMode : public testing::Test {
 protected:
  void TearDown() override { unsetenv("CREDENTIALS_DIRECTORY"); }
};

TEST_F(SecretMode, NobodyButItsOwnerReadsASecret) {
  unsetenv("CREDENTIALS_DIRECTORY");
  EXPECT_EQ(ForbiddenModeBits("/run/credentials/t/keys"), 077u);
  for (const char* no_directory : {"", "run", "."}) {
    setenv("CREDENTIALS_DIRECTORY", no_directory, 1);
    EXPECT_EQ(ForbiddenModeBits("/keys"), 077u) << no_directory;
    EXPECT_EQ(ForbiddenModeBits("run/keys"), 077u) << no_directory;
  }
}

TEST_F(SecretMode, OfACredentialItsGroupMayReadAndNothingElse) {
  for (const char* directory :
       {"/run/credentials/t", "/run/credentials/t/", "/run/./credentials//t"}) {
    setenv("CREDENTIALS_DIRECTORY", directory, 1);
    EXPECT_EQ(ForbiddenModeBits("/run/credentials/t/keys"), 037u);
    EXPECT_EQ(ForbiddenModeBits("/run/credentials/t/./keys"), 037u);
    for (const char* other : {"/run/credentials/two/keys", "/run/credentials/t",
                              "/run/credentials/t/../keys", "/etc/terrace/keys"}) {
      EXPECT_EQ(ForbiddenModeBits(other), 077u) << other;
    }
  }
}

}  // namespace
}  // namespace terrace
