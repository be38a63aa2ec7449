// A forked child has no Client; its parent does not notice.
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <csignal>

#include "unit/client/client_fixture.h"

namespace terrace {
namespace {

using protocol::Verb;

class Fork : public ClientFixture {
 protected:
  // Runs `child` in a forked process; its exit status.
  template <typename Child>
  static int InChild(Child child) {
    const pid_t pid = fork();
    if (pid == 0) {
      alarm(20);
      _exit(child());
    }
    int status = -1;
    waitpid(pid, &status, 0);
    return WIFEXITED(status) ? WEXITSTATUS(status) : 1000 + status;
  }
};

TEST_F(Fork, TheChildsCallsAreGoneAndTheParentWorksOn) {
  ReadLease read = Acquire(2);
  WriteLease write = Reserve(2);
  std::byte* const mapped = const_cast<std::byte*>(read.slot(0, 0).data());
  ASSERT_EQ(msync(mapped, 4096, MS_ASYNC), 0);
  const int failed = InChild([&] {
    if (client_->Match(group_, TestKeys(1)).code() != StatusCode::kGone) return 1;
    if (client_->AcquireAsync(group_, TestKeys(1), {}, 0).code() != StatusCode::kGone) return 2;
    if (client_->is_connected() || read.is_valid() || !read.slot(0, 0).empty()) return 3;
    if (write.WritePart(0, 0, 0, part_).code() != StatusCode::kGone) return 4;
    if (client_->WaitConnected(1'000).code() != StatusCode::kGone) return 5;
    if (msync(mapped, 4096, MS_ASYNC) == 0 || errno != ENOMEM) return 6;  // is not mapped
    read = ReadLease();
    write.Abort();
    write = WriteLease();
    client_.reset();
    return 0;
  });
  EXPECT_EQ(failed, 0);
  EXPECT_TRUE(daemon_.Received(Verb::kRelease).empty());
  EXPECT_TRUE(client_->Match(group_, TestKeys(1)).ok());
  EXPECT_TRUE(write.WritePart(0, 0, 0, part_).ok());
  EXPECT_TRUE(read.is_valid());
}

TEST_F(Fork, AChildThatLivesOnDoesNotKeepTheParentAlive) {
  int go[2];
  ASSERT_EQ(pipe(go), 0);
  const pid_t pid = fork();
  if (pid == 0) {
    alarm(20);
    close(go[1]);
    char byte;
    _exit(read(go[0], &byte, 1) == 0 ? 0 : 1);
  }
  client_.reset();
  EXPECT_TRUE(daemon_.WaitLifeEnds(0));
  close(go[1]);
  close(go[0]);
  int status = -1;
  waitpid(pid, &status, 0);
  EXPECT_EQ(status, 0);
}

#if !defined(__SANITIZE_THREAD__) && !defined(__SANITIZE_ADDRESS__)
// A client in a forked child starts a thread. ThreadSanitizer forbids that after a fork of a
// threaded process; AddressSanitizer's allocator may be locked, for ever, by a thread that the
// fork left behind (the C library's is not).
TEST_F(Fork, AKilledParentsLifeEndsThoughItsChildLivesOn) {
  ScriptedDaemon other;
  const ClientOptions options = TestOptions(other);
  int alive[2];
  ASSERT_EQ(pipe(alive), 0);
  const pid_t parent = fork();
  if (parent == 0) {
    const Result<std::unique_ptr<Client>> client = Client::Create(options);
    if (!client.ok() || !(*client)->WaitConnected(kLongUs).ok()) _exit(1);
    if (fork() == 0) {
      alarm(20);
      close(alive[1]);
      char byte;
      _exit(read(alive[0], &byte, 1) == 0 ? 0 : 1);
    }
    raise(SIGKILL);
  }
  close(alive[0]);
  int status = -1;
  waitpid(parent, &status, 0);
  ASSERT_TRUE(WIFSIGNALED(status));
  EXPECT_TRUE(other.WaitLifeEnds(0));
  close(alive[1]);
}

TEST_F(Fork, TheChildMayHaveAClientOfItsOwn) {
  ScriptedDaemon other;
  const ClientOptions options = TestOptions(other);
  EXPECT_EQ(InChild([&] {
              Result<std::unique_ptr<Client>> client = Client::Create(options);
              if (!client.ok()) return 1;
              return (*client)->WaitConnected(kLongUs).ok() ? 0 : 2;
            }),
            0);
}
#endif

}  // namespace
}  // namespace terrace
