#include "daemon/socket/memory_to_read.h"

#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

#include <array>
#include <asio/io_context.hpp>
#include <cerrno>
#include <cstring>
#include <filesystem>
#include <string>
#include <vector>

#include "daemon/socket/socket_transport.h"
#include "terrace/open_file.h"

namespace terrace {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

constexpr size_t kBytes = 4096;

int MakeMemory() {
  const int fd = memfd_create("memory", MFD_CLOEXEC | MFD_ALLOW_SEALING);
  EXPECT_EQ(ftruncate(fd, kBytes), 0);
  EXPECT_EQ(pwrite(fd, "right", 5, 0), 5);
  return fd;
}
bool IsToReadAlone(int fd) { return (fcntl(fd, F_GETFL) & O_ACCMODE) == O_RDONLY; }
size_t OpenCount() {
  const auto all = std::filesystem::directory_iterator("/proc/self/fd");
  return static_cast<size_t>(std::distance(begin(all), end(all)));
}

TEST(MemoryToRead, IsTheSameMemoryAndCannotBeWritten) {
  const OpenFile memory(MakeMemory());
  const OpenFile to_read(OpenToRead(memory.fd()));
  ASSERT_GE(to_read.fd(), 0);
  EXPECT_TRUE(IsToReadAlone(to_read.fd()));
  EXPECT_EQ(fcntl(to_read.fd(), F_GETFD) & FD_CLOEXEC, FD_CLOEXEC);
  void* const mapped = mmap(nullptr, kBytes, PROT_READ, MAP_SHARED, to_read.fd(), 0);
  ASSERT_NE(mapped, MAP_FAILED);
  EXPECT_EQ(pwrite(memory.fd(), "later", 5, 0), 5);
  EXPECT_EQ(std::memcmp(mapped, "later", 5), 0);
  EXPECT_EQ(mprotect(mapped, kBytes, PROT_READ | PROT_WRITE), -1);
  EXPECT_EQ(errno, EACCES);
  munmap(mapped, kBytes);
  EXPECT_EQ(mmap(nullptr, kBytes, PROT_READ | PROT_WRITE, MAP_SHARED, to_read.fd(), 0), MAP_FAILED);
  EXPECT_EQ(errno, EACCES);
}

// Of a predecessor that left the mode as memfds have it.
TEST(MemoryToRead, IsClosedToOtherUsersBeforeItIsHandedOut) {
  const OpenFile memory(MakeMemory());
  ASSERT_EQ(fchmod(memory.fd(), 0777), 0);
  const OpenFile to_read(OpenToRead(memory.fd()));
  ASSERT_GE(to_read.fd(), 0);
  struct stat about {};
  ASSERT_EQ(fstat(memory.fd(), &about), 0);
  EXPECT_EQ(about.st_mode & 0777, 0600u);
}

TEST(MemoryToRead, OfAnotherOwnerIsNotHandedOut) {
  if (geteuid() != 0) GTEST_SKIP() << "root only: it gives a file away";
  const OpenFile memory(MakeMemory());
  ASSERT_EQ(fchown(memory.fd(), 4242, 4242), 0);
  EXPECT_LT(OpenToRead(memory.fd()), 0);
  EXPECT_EQ(errno, EPERM);
  std::string why;
  EXPECT_FALSE(CanBeOpenedToRead(std::array{memory.fd()}, &why));
  EXPECT_THAT(why, AllOf(HasSubstr("writer_uids"), HasSubstr("another user"), HasSubstr("stop")));
}

TEST(MemoryToRead, WhatIsNoDescriptorIsSaid) {
  std::string why;
  EXPECT_FALSE(CanBeOpenedToRead(std::array{1 << 20}, &why));
  EXPECT_THAT(why, HasSubstr("/proc/self/fd/1048576"));
  const OpenFile memory(MakeMemory());
  EXPECT_TRUE(CanBeOpenedToRead(std::array{memory.fd()}, &why));
}

// What a session receives with its Hello.
class HandedOut : public ::testing::Test {
 protected:
  // With what the event loop opens at its first use.
  void SetUp() override {
    for (const int fd : Take(Transport::Attach::kArenaAndLife)) close(fd);
    transport_.CloseAll();
  }
  std::vector<int> Take(Transport::Attach attach) {
    std::array<int, 2> ends{-1, -1};
    EXPECT_EQ(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0, ends.data()), 0);
    EXPECT_TRUE(transport_.Add({.session = ++session_, .socket_fd = ends[0]}));
    const std::array<std::byte, 16> hello{};
    transport_.Send(session_, hello, attach);
    std::array<std::byte, 16> got{};
    iovec piece{got.data(), got.size()};
    alignas(cmsghdr) std::array<char, CMSG_SPACE(8 * sizeof(int))> control{};
    msghdr message{};
    message.msg_iov = &piece;
    message.msg_iovlen = 1;
    message.msg_control = control.data();
    message.msg_controllen = control.size();
    got_bytes_ = recvmsg(ends[1], &message, MSG_CMSG_CLOEXEC);
    const cmsghdr* const header = CMSG_FIRSTHDR(&message);
    std::vector<int> fds(header == nullptr ? 0 : (header->cmsg_len - CMSG_LEN(0)) / sizeof(int));
    if (!fds.empty()) std::memcpy(fds.data(), CMSG_DATA(header), fds.size() * sizeof(int));
    close(ends[1]);
    return fds;
  }
  ~HandedOut() override {
    for (const int fd : {one_, other_, notices_}) close(fd);
  }

  asio::io_context loop_;
  const int one_ = MakeMemory(), other_ = MakeMemory(), notices_ = MakeMemory();
  SessionId session_ = 0;
  ssize_t got_bytes_ = 0;
  SocketTransport transport_{
      loop_,
      {{.arena = {one_, other_}, .notices = notices_, .slabs = {}}},
      {.on_bytes = [](SessionId, std::span<const std::byte>) { return true; },
       .on_hang_up = [](SessionId) {},
       .on_proof_of_death = [](SessionId) {},
       .on_first_slot = [](SessionId, uint32_t, int, int) {},
       .on_close = [](SessionId, CloseReason) {},
       .on_forget = [](SessionId) {}}};
};

TEST_F(HandedOut, AReadersMemoryIsOpenForReadingAlone) {
  for (const auto& [attach, count] :
       {std::pair(Transport::Attach::kReadersArenaAndLife, 3u),
        std::pair(Transport::Attach::kReadersArenaLifeAndNotices, 4u)}) {
    const size_t before = OpenCount();
    const std::vector<int> fds = Take(attach);
    ASSERT_EQ(fds.size(), count);
    EXPECT_TRUE(IsToReadAlone(fds[0]) && IsToReadAlone(fds[1]));
    EXPECT_FALSE(IsToReadAlone(fds[2])) << "the life socket";
    for (const int fd : fds) close(fd);
    EXPECT_EQ(OpenCount(), before + 2) << "the connection and its life socket, and no memory";
  }
  const std::vector<int> writers = Take(Transport::Attach::kArenaAndLife);
  ASSERT_EQ(writers.size(), 3u);
  EXPECT_FALSE(IsToReadAlone(writers[0]));
  for (const int fd : writers) close(fd);
}

// Each its own open file: what one does to offset, flags and locks no other sees.
TEST_F(HandedOut, ReadersShareNoOpenFile) {
  const std::vector<int> a = Take(Transport::Attach::kReadersArenaAndLife);
  const std::vector<int> b = Take(Transport::Attach::kReadersArenaAndLife);
  ASSERT_TRUE(a.size() == 3 && b.size() == 3);
  EXPECT_EQ(lseek(a[0], 1234, SEEK_SET), 1234);
  EXPECT_EQ(lseek(b[0], 0, SEEK_CUR), 0);
  for (const int fd : a) close(fd);
  for (const int fd : b) close(fd);
}

TEST_F(HandedOut, WhoCannotBeHandedItToReadGetsNothing) {
  if (geteuid() != 0) GTEST_SKIP() << "root only: it gives a file away";
  ASSERT_EQ(fchown(other_, 4242, 4242), 0);
  const size_t before = OpenCount();
  EXPECT_TRUE(Take(Transport::Attach::kReadersArenaAndLife).empty());
  EXPECT_EQ(got_bytes_, 0) << "the connection has ended";
  transport_.CloseAll();
  EXPECT_EQ(OpenCount(), before);
}

}  // namespace
}  // namespace terrace
