#include "terrace/lock_holder.h"

#include <gtest/gtest.h>
#include <sys/mman.h>
#include <unistd.h>

#include <string>

#include "terrace/open_file.h"

namespace terrace {
namespace {

// A lock file with these bytes.
class LockFile {
 public:
  explicit LockFile(const std::string& bytes) : file_(memfd_create("lock", MFD_CLOEXEC)) {
    EXPECT_EQ(pwrite(fd(), bytes.data(), bytes.size(), 0), static_cast<ssize_t>(bytes.size()));
  }
  int fd() const { return file_.fd(); }
  std::string Bytes() const {
    std::string bytes(64, '\0');
    bytes.resize(static_cast<size_t>(pread(fd(), bytes.data(), bytes.size(), 0)));
    return bytes;
  }

 private:
  const OpenFile file_;
};

TEST(LockHolderTest, NamesItselfInALineWhateverWasThere) {
  for (const char* before : {"", "12345678901234567890123456789", "7", "1234567\n9"}) {
    const LockFile lock(before);
    LockHolder::NameMyself(lock.fd());
    EXPECT_EQ(LockHolder::Read(lock.fd()).pid, getpid());
    EXPECT_EQ(lock.Bytes(), std::to_string(getpid()) + "\n");
  }
}

TEST(LockHolderTest, TakesTheNumberOfAnyVersion) {
  for (const char* bytes : {"4321", "4321\n", "4321\n99"}) {
    EXPECT_EQ(LockHolder::Read(LockFile(bytes).fd()).Text(), "process 4321") << bytes;
  }
}

TEST(LockHolderTest, WhatIsNoNumberIsNobody) {
  for (const char* bytes :
       {"", "\n", "daemon", "-1\n", "0\n", "12x\n", " 12\n", "99999999999999999999999\n"}) {
    const LockHolder holder = LockHolder::Read(LockFile(bytes).fd());
    EXPECT_EQ(holder.pid, 0) << bytes;
    EXPECT_EQ(holder.Text(), "a process of unknown number") << bytes;
  }
}

}  // namespace
}  // namespace terrace
