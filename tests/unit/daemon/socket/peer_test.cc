#include "daemon/socket/peer.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cerrno>

namespace terrace {
namespace {

// Nobody has ended: who is refused for that alone looks for the cause in the wrong place.
TEST(PeerPidfd, WithoutADescriptorThePeerIsNotTakenForOneThatHasEnded) {
  int ends[2];
  ASSERT_EQ(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends), 0);
  PeerCredentials peer;
  ASSERT_TRUE(ReadPeerCredentials(ends[0], &peer).ok());
  rlimit before{};
  ASSERT_EQ(getrlimit(RLIMIT_NOFILE, &before), 0);
  const int next = fcntl(ends[0], F_DUPFD_CLOEXEC, 0);
  close(next);
  const rlimit none{.rlim_cur = static_cast<rlim_t>(next), .rlim_max = before.rlim_max};
  ASSERT_EQ(setrlimit(RLIMIT_NOFILE, &none), 0);
  int pidfd = -1;
  const Status status = OpenPeerPidfd(ends[0], peer, &pidfd);
  ASSERT_EQ(setrlimit(RLIMIT_NOFILE, &before), 0);
  EXPECT_EQ(status.code(), StatusCode::kNoSpace);
  EXPECT_EQ(status.detail(), EMFILE);
  EXPECT_EQ(pidfd, -1);
  EXPECT_TRUE(OpenPeerPidfd(ends[0], peer, &pidfd).ok());
  close(pidfd);
  close(ends[0]);
  close(ends[1]);
}

}  // namespace
}  // namespace terrace
