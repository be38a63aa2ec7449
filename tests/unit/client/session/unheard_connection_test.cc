// Connections that the system does not let a client listen to.
#include <gmock/gmock.h>
#include <sys/epoll.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>

#include "unit/client/client_fixture.h"

namespace terrace {
namespace {

using testing::AllOf;
using testing::HasSubstr;

std::atomic<int> g_listen_errno{0};
std::atomic<uint32_t> g_unheard_count{0};

using UnheardConnections = ClientFixture;

// PROMISE: T26 a socket that cannot be listened to
TEST_F(UnheardConnections, AreGivenUpAndMadeAgainAndSayWhatToRaise) {
  g_listen_errno = ENOSPC;
  daemon_.Disconnect();
  ASSERT_TRUE(Eventually([] { return g_unheard_count >= 2; }));
  EXPECT_FALSE(client_->is_connected());
  EXPECT_THAT(client_->last_error(), AllOf(HasSubstr("cannot listen to the socket (errno 28)"),
                                           HasSubstr("fs.epoll.max_user_watches")));
  g_listen_errno = 0;
  ASSERT_TRUE(Eventually([&] { return client_->is_connected(); }));
  ASSERT_TRUE(client_->PrefetchAsync(group_, TestKeys(1), {.deadline_us = kLongUs}, 7).ok());
  ClientCompletion completion;
  ASSERT_TRUE(client_->PollUntil(&completion, kLongUs));
  EXPECT_TRUE(completion.status.ok()) << completion.status.what();
}

}  // namespace
}  // namespace terrace

// In place of the C library's, for this program.
extern "C" int epoll_ctl(int epoll_fd, int operation, int fd, epoll_event* event) noexcept {
  if (operation == EPOLL_CTL_ADD && terrace::g_listen_errno != 0) {
    ++terrace::g_unheard_count;
    errno = terrace::g_listen_errno;
    return -1;
  }
  return static_cast<int>(syscall(SYS_epoll_ctl, epoll_fd, operation, fd, event));
}
