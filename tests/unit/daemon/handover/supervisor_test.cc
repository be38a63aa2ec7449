#include "daemon/handover/supervisor.h"

#include <gtest/gtest.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <cstdlib>
#include <cstring>
#include <string>

namespace terrace {
namespace {

// A supervisor that reads when it is told to.
class SupervisorTest : public testing::Test {
 protected:
  SupervisorTest() {
    char name[] = "/tmp/terrace_supervisor_XXXXXX";
    directory_ = mkdtemp(name);
    path_ = directory_ + "/notify";
    setenv("NOTIFY_SOCKET", path_.c_str(), 1);
  }
  ~SupervisorTest() override {
    if (fd_ >= 0) close(fd_);
    unsetenv("NOTIFY_SOCKET");
    (void)!system(("rm -rf " + directory_).c_str());
  }
  void Listen() {
    fd_ = socket(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC, 0);
    sockaddr_un address{.sun_family = AF_UNIX, .sun_path = {}};
    std::memcpy(address.sun_path, path_.data(), path_.size());
    ASSERT_EQ(bind(fd_, reinterpret_cast<const sockaddr*>(&address), sizeof(address)), 0);
  }
  std::string Read() {
    char message[256];
    const ssize_t bytes = recv(fd_, message, sizeof(message), MSG_DONTWAIT);
    return bytes < 0 ? "" : std::string(message, static_cast<size_t>(bytes));
  }

  std::string directory_;
  std::string path_;
  int fd_ = -1;
};

TEST_F(SupervisorTest, HearsWhatItIsTold) {
  Listen();
  EXPECT_TRUE(TellSupervisor("READY=1\nSTATUS=here"));
  EXPECT_EQ(Read(), "READY=1\nSTATUS=here");
}

TEST_F(SupervisorTest, OneThatDoesNotReadIsNotWaitedFor) {
  Listen();
  uint32_t told = 0;
  while (told < 100'000 && TellSupervisor("WATCHDOG=1")) ++told;
  ASSERT_LT(told, 100'000u);  // its queue is full, and we are here
  EXPECT_EQ(Read(), "WATCHDOG=1");
  EXPECT_TRUE(TellSupervisor("STOPPING=1"));
}

TEST_F(SupervisorTest, NoneIsNothingToWaitFor) {
  EXPECT_TRUE(TellSupervisor("READY=1"));  // nobody listens there
  unsetenv("NOTIFY_SOCKET");
  EXPECT_TRUE(TellSupervisor("READY=1"));
}

}  // namespace
}  // namespace terrace
